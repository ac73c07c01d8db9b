"""`gin compare`: ratios of results, with intervals and thresholds."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from gin.bench.load import ResultFile, load
from gin.bench.plan import TESTS
from gin.bench.results import Output, abandon
from gin.compare import text
from gin.compare.fit import require_fit, warnings, wrong_data
from gin.compare.join import FIELDS, Comparison, Located, compare, default_dimension, file_names, located
from gin.compare.judge import Verdict, judge, require_fields
from gin.compare.ratio import METRICS
from gin.compare.threshold import Threshold, parse_conditions, parse_threshold, parse_thresholds
from gin.errors import Error, ResultsError

__all__ = ["command"]

OK, CROSSED, USAGE = 0, 1, 2

EPILOG = """\b
Examples:
  gin compare results.json
  gin compare base.json new.json --fail-if 'latency.median_us: new / base > 1.1 @ bytes<=1K'
  gin compare results.json --fail-if 'latency.median_us: nccl_gin / nvshmem > 1.2 @ bytes<=1K, route=native'
  gin compare base.json new.json --thresholds thresholds.txt --sure --markdown -o comment.md
  gin compare results.json --by route --where 'backend=ibrc_proxy'

\b
A threshold: [TEST.]METRIC: NAME [/ NAME] > NUMBER [@ FIELD<=VALUE, ...]
  METRIC  median_us, p99_us, bandwidth_GBps, rate_Mops, ...
  NAME    a backend, route, wire, platform, scope, op or file; base is the first file, new every other one
  without a second name the metric itself is held against the number

\b
Exit status: 0 compared, 1 a threshold is crossed or data was wrong, 2 usage, unreadable or not comparable."""


def _fields(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    del context, parameter
    names = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    for name in names:
        if name not in (*FIELDS, "emulated"):
            raise click.BadParameter(f"{name!r} is no field; there is emulated, {', '.join(FIELDS)}")
    return names


@click.command("compare", epilog=EPILOG, short_help="Compare results row by row, as ratios; fail past thresholds.")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--by",
    metavar="FIELD",
    shell_complete=lambda ctx, param, text: [name for name in ("file", *FIELDS) if name.startswith(text)],
    help="What is compared: file, backend, route, ...  [default: file if there are several, else backend, else route]",
)
@click.option("--base", metavar="NAME", help="What the others are divided by.  [default: the first]")
@click.option(
    "--metric",
    shell_complete=lambda ctx, param, text: [name for name in METRICS if name.startswith(text)],
    help="What is compared.  [default: each test's main figure]",
)
@click.option("--where", metavar="CONDITIONS", help="Only rows that fulfil these, e.g. 'bytes<=1K, route=native'.")
@click.option("--fail-if", "fail_if", multiple=True, metavar="THRESHOLD", help="Exit with 1 when a row crosses it.")
@click.option("--thresholds", metavar="FILE", type=click.Path(), help="A file with a threshold on each line.")
@click.option(
    "--sure",
    is_flag=True,
    help="A row crosses a threshold only with its whole 95 % interval; one without an interval, with its value.",
)
@click.option("--ignore", callback=_fields, metavar="FIELD,...", help="Compare although these differ.")
@click.option("--markdown", is_flag=True, help="Markdown, for a pull request.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Where Markdown or JSON goes, while the table is shown.",
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.pass_context
def command(context: click.Context, /, files: tuple[str, ...], **options: Any) -> None:
    """Compare results row by row.

    Rows of two or more files, or of the backends in one, are joined on everything but what differs. Each ratio comes
    with its 95 % interval where the results have one.
    """
    if options["markdown"] and options["as_json"]:
        raise click.UsageError("--markdown or --json, not both")
    if options["output"] is not None and not (options["markdown"] or options["as_json"]):
        raise click.UsageError("--output goes with --markdown or --json")
    try:
        with _claimed(options["output"], options["force"]) as output:
            context.exit(_compare(files, options, output))
    except Error as error:
        click.echo(f"gin compare: {error}", err=True)
        context.exit(USAGE)


@contextlib.contextmanager
def _claimed(path: str | None, force: bool) -> Iterator[Output | None]:
    """The output, claimed before the work; nothing is left of it when that fails."""
    if path is None:
        yield None
        return
    try:
        output = Output(path, force=force)
    except FileExistsError:
        raise ResultsError(f"{path} exists; give another name, or --force to replace it") from None
    except OSError as error:
        raise ResultsError(f"cannot write {path or repr(path)}: {error.strerror}") from None
    try:
        yield output
    finally:
        output.discard()


def _compare(paths: Sequence[str], options: dict[str, Any], output: Output | None) -> int:
    thresholds = _thresholds(options)
    files = [load(path) for path in paths]
    names = file_names(files)
    require_fit(files, names, options["ignore"])
    rows = _selected(files, options["where"])
    ignored = tuple(name for name in options["ignore"] if name != "emulated")
    comparison = _comparison(rows, options, ignored, bool(thresholds))
    verdicts = [judge(threshold, rows, names, sure=options["sure"], ignore=ignored) for threshold in thresholds]
    base = comparison.base if comparison and comparison.dimension == "file" else None
    wrong, fails = wrong_data(rows, base)
    remarks = wrong + warnings(files, names) + (comparison.remarks if comparison else [])
    if comparison and comparison.dimension == "file":
        remarks.append("a file is one run: the intervals do not hold what differs from run to run")
    _show(comparison, verdicts, remarks, rows, options, output)
    return CROSSED if fails or any(verdict.crossings for verdict in verdicts) else OK


def _thresholds(options: dict[str, Any]) -> list[Threshold]:
    found = [parse_threshold(text) for text in options["fail_if"]]
    if options["thresholds"]:
        path = options["thresholds"]
        try:
            with open(path, encoding="utf-8-sig") as lines:
                more = parse_thresholds(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise ResultsError(
                f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}"
            ) from None
        except ResultsError as error:
            raise ResultsError(f"{path}: {error}") from None
        if not more:
            raise ResultsError(f"{path}: holds no threshold")
        found += more
    return found


def _selected(files: Sequence[ResultFile], where: str | None) -> list[Located]:
    rows = located(files)
    if not rows:
        raise ResultsError(f"{', '.join(file.path for file in files)}: no rows")
    if where is None:
        return rows
    conditions = parse_conditions(where)
    require_fields(conditions, rows, f"--where {where}")
    kept = [row for row in rows if all(condition.holds({**row.row, "file": row.file}) for condition in conditions)]
    if not kept:
        raise ResultsError(f"--where {where}: matches none of {len(rows)} rows")
    return kept


def _comparison(
    rows: Sequence[Located], options: dict[str, Any], ignored: Sequence[str], may_be_none: bool
) -> Comparison | None:
    dimension = options["by"] or default_dimension(rows)
    if dimension is None:
        if may_be_none:
            return None
        raise ResultsError(
            "nothing to compare: one file with one backend and one route; give another file, or --by FIELD"
        )
    if dimension not in ("file", *FIELDS):
        raise ResultsError(f"--by {dimension}: no such field; there is file, {', '.join(FIELDS)}")
    metric = options["metric"]
    if metric is not None and metric not in METRICS:
        raise ResultsError(f"--metric {metric}: no such metric; there is {', '.join(METRICS)}")
    metrics = {test.name: test.columns[0] for test in TESTS.values()}
    return compare(rows, dimension, base=options["base"], ignore=ignored, metric=metric, metrics=metrics)


def _show(
    comparison: Comparison | None,
    verdicts: Sequence[Verdict],
    remarks: Sequence[str],
    rows: Sequence[Located],
    options: dict[str, Any],
    output: Output | None,
) -> None:
    formatted = None
    if options["markdown"]:
        formatted = text.markdown(comparison, verdicts, remarks, rows)
    elif options["as_json"]:
        formatted = text.to_json(comparison, verdicts, remarks)
    if formatted is not None and output is None:
        click.echo(formatted, nl=False)
        return
    if formatted is not None and output is not None:
        _write(output, formatted)
        if output.path == "-":
            return
    width = _width()
    for line in remarks:
        click.echo(_wrapped(line, width))
    if comparison is not None:
        click.echo(text.plain(comparison, width), nl=False)
        for line in text.summaries(comparison):
            click.echo(_wrapped(line, width))
    for verdict in verdicts:
        click.echo(_filled(str(verdict), width, "", "  "))
        for line in text.crossings(verdict, rows):
            click.echo(_filled(line, width, "  ", "    "))


def _write(output: Output, formatted: str) -> None:
    try:
        output.write(formatted)
    except OSError as error:
        if output.path == "-":
            abandon(sys.stdout)
        raise ResultsError(f"cannot write {output.path}: {error.strerror}") from None


def _wrapped(line: str, width: int) -> str:
    return _filled(line, width, "# ", "#   ")


def _filled(line: str, width: int, first: str, rest: str) -> str:
    shape: dict[str, Any] = {"break_on_hyphens": False, "replace_whitespace": False, "drop_whitespace": True}
    return textwrap.fill(line, max(width, 40), initial_indent=first, subsequent_indent=rest, **shape)


def _width() -> int:
    """Columns of the terminal; what goes to a file or a pipe is as wide as it needs to be, within reason."""
    with contextlib.suppress(ValueError):
        if sys.stdout.isatty() or "COLUMNS" in os.environ:
            return shutil.get_terminal_size((100, 24)).columns
    return 200
