"""`gin bench`: sweeps with the backends side by side."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import gin.ranks
from gin.backends import NAMES
from gin.bench import conditions, sweep
from gin.bench.load import ResultFile, load
from gin.bench.plan import ROUTES, SCOPES, TESTS, Plan, format_size, sizes_between
from gin.bench.report import Reporter
from gin.bench.results import ROW_FIELDS, Output, abandon, to_csv, to_json
from gin.bench.resume import resumed
from gin.cli.interrupts import terminated_as_interrupted, undisturbed
from gin.config import Config, parse_duration, parse_size
from gin.errors import ConfigError, Error, ResultsError

OK, WRONG, USAGE, UNAVAILABLE, TIMEOUT, INTERRUPTED = 0, 1, 2, 3, 4, 130
_EXIT_CODES = {
    "ConfigError": USAGE,
    "UnsupportedError": UNAVAILABLE,
    "TimeoutError": TIMEOUT,
    "BootstrapTimeoutError": TIMEOUT,
}

EPILOG = """\b
Examples:
  gin bench latency
  gin bench bandwidth --backend nvshmem,ibrc_proxy -b 64K -e 16M --json out.json
  gin bench latency --op all -b 8 -e 4K
  gin bench rate -c 1,2,4 -t 32 -s warp,block --contexts 1,4 --route native
  gin bench moe --ranks 2,4 --json moe.json
  gin bench --resume moe.json
  gin run -n 4 -- gin bench alltoall

\b
Exit status: 0 all data right, 1 wrong data or a failure, 2 usage, 3 a backend cannot run here, 4 a deadline passed.
Sizes: K, M, G are powers of 1024. Results: us, GB/s = 1e9 bytes/s, Mmsg/s = 1e6 messages/s."""


class _Parsed(click.ParamType[Any]):
    """A value read by one of gin's own parsers. `names`: what a shell may complete each part of a list to."""

    def __init__(self, name: str, parse: Callable[[object], Any], names: Sequence[str] = ()) -> None:
        self.name = name
        self._parse = parse
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = self._names
        if param.name == "operations":  # the test is not known to an option that is not complete yet
            names = list(dict.fromkeys(made.name for test in TESTS.values() for made in test.operations))
        done, comma, rest = incomplete.rpartition(",")
        given = done.split(",")
        return [CompletionItem(f"{done}{comma}{name}") for name in names if name.startswith(rest) and name not in given]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: expected {error}", param, ctx)


def _backends(value: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
    if names == ("all",):
        return names
    for name in names:
        if name not in NAMES:
            raise ValueError(f"all, or some of {', '.join(NAMES)} with commas between them; {name!r} is none")
    return names


def _counts(most: int) -> Callable[[object], tuple[int, ...]]:
    """A parser of whole numbers with commas between them, 1 to `most`."""

    def parse(value: object) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= most for part in parts):
            raise ValueError(f"a whole number from 1 to {most}, or several with commas between them")
        return tuple(dict.fromkeys(map(int, parts)))

    return parse


def _scopes(value: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
    if names == ("all",):
        return SCOPES
    for name in names:
        if name not in SCOPES:
            raise ValueError(f"all, or some of {', '.join(SCOPES)} with commas between them; {name!r} is none")
    return names


def _words(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))


SIZE, DURATION, BACKEND_LIST = (
    _Parsed("size", parse_size),
    _Parsed("seconds", parse_duration),
    _Parsed("list", _backends, ("all", *NAMES)),
)
CTAS, THREADS, CONTEXTS, RANKS = (_Parsed("list", _counts(most)) for most in (65536, 1024, 1024, 4096))


@click.command("bench", epilog=EPILOG, short_help="Measure all backends with the same kernel, side by side.")
@click.argument("test", type=click.Choice(list(TESTS)), required=False)
@click.option(
    "--op",
    "operations",
    type=_Parsed("list", _words),
    help="What of the test is measured, or all.  [default: the first]",
)
@click.option("--list", "listing", is_flag=True, help="Say which tests, backends and scopes there are, and end.")
@click.option("--backend", type=BACKEND_LIST, default="all", show_default=True, help="all, or names with commas.")
@click.option(
    "--route",
    type=click.Choice([*ROUTES, "auto", "all"]),
    default="all",
    show_default=True,
    help="The backend's own operations, loads and stores, the one gin would choose, or both.",
)
@click.option("-b", "--min-bytes", "--minbytes", type=SIZE, help="Smallest message.  [default: by test]")
@click.option("-e", "--max-bytes", "--maxbytes", type=SIZE, help="Largest message.  [default: by test]")
@click.option(
    "-f", "--step-factor", "--stepfactor", type=float, default=2.0, show_default=True, help="From one size to the next."
)
@click.option(
    "-n", "--iters", type=click.IntRange(1, 10_000_000), help="Iterations per row.  [default: by size and time]"
)
@click.option(
    "-w",
    "--warmup",
    "--warmup-iters",
    type=click.IntRange(0, 10_000_000),
    help="Iterations before those that are kept, in each of a row's launches.  [default: until steady]",
)
@click.option("-c", "--ctas", type=CTAS, default="1", show_default=True, help="Blocks; several with commas.")
@click.option(
    "-t",
    "--threads-per-cta",
    "threads",
    type=THREADS,
    help="Threads of a block; several with commas.  [default: 1 for scope thread, else 32]",
)
@click.option(
    "-s",
    "--scope",
    type=_Parsed("list", _scopes, ("all", *SCOPES)),
    default="thread",
    show_default=True,
    help="The group that calls each operation: thread, warp, block, some of them, or all.",
)
@click.option("--contexts", type=CONTEXTS, help="Contexts that the blocks share out; several with commas.")
@click.option("--ranks", type=RANKS, help="Ranks to start here; several with commas.  [default: 2, or the launcher's]")
@click.option("--wire", help="What proxies and emulated backends post to.  [default: as configured]")
@click.option("--platform", help="Where kernels run.  [default: as configured]")
@click.option("--timeout", type=DURATION, default="30", show_default=True, help="Seconds that any wait may take.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Check every payload.")
@click.option("--json", "json_path", metavar="FILE|-", type=click.Path(), help="Write the results as JSON.")
@click.option("--csv", "csv_path", metavar="FILE|-", type=click.Path(), help="Write the results as CSV.")
@click.option("--samples/--no-samples", default=True, show_default=True, help="Keep every sample in the JSON.")
@click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(),
    help="Go on with a sweep that ended early, as it was started, in its own file.",
)
@click.option("--force", is_flag=True, help="Replace result files that exist.")
@click.option(
    "--baseline",
    is_flag=True,
    help="First say what this machine does without gin; on GPUs measure the libraries' own calls in the same sweep.",
)
@click.pass_context
def command(ctx: click.Context, /, test: str | None, listing: bool, **options: Any) -> None:
    """Measure all backends with the same kernel, side by side, every payload verified.

    Starts its ranks on this machine, or uses those of the launcher it runs under (gin run, torchrun, mpirun, srun).
    """
    if listing:
        click.echo(_listing())
        return
    before = None
    if options["resume"] is not None:
        before, test, options = _before(ctx, test, options)
    if test is None:
        raise click.UsageError(f"give a test: {', '.join(TESTS)}; or --list")
    job = _launched()
    ranks = _rank_counts(options["ranks"], job)
    plan = _plan(test, min(ranks), options)
    if before is not None:
        plan = _resumed(plan, before)
    leads = job is None or job.rank == 0
    outputs = _claim_outputs(options) if leads else []
    try:
        with terminated_as_interrupted() if leads else contextlib.nullcontext():
            ctx.exit(_sweep(plan, ranks, job is not None, leads, options["baseline"], outputs, before))
    finally:
        for output, _ in outputs:
            output.discard()


def _before(
    ctx: click.Context, test: str | None, options: dict[str, Any]
) -> tuple[ResultFile, str | None, dict[str, Any]]:
    """The results so far, and the test and options of their sweep: those of its command, where the file says it."""
    path = options["resume"]
    if options["json_path"] not in (None, path):
        raise click.UsageError(f"--resume goes on in {path}; leave --json out")
    try:
        before = load(path)
    except ResultsError as error:
        raise click.UsageError(str(error)) from None
    if before.command[:2] != ("gin", "bench"):
        if test is None:
            raise click.UsageError(f"{path}: does not say its command; repeat the test and its options")
        return before, test, {**options, "json_path": path, "force": True}
    given = [p for p in ctx.command.params if ctx.get_parameter_source(p.name or "") is ParameterSource.COMMANDLINE]
    other = [p.opts[0] for p in given if p.name not in ("test", "resume", "json_path", "force", "baseline")]
    if other:
        raise click.UsageError(f"--resume goes on as {path} was started; leave {', '.join(other)} out")
    repeated = dict(command.make_context("gin bench", list(before.command[2:])).params)
    started = repeated.pop("test") or (before.rows[0]["test"] if before.rows else None)
    if test not in (None, started):
        raise click.UsageError(f"{path}: holds results of {started}, not of {test}")
    _require_table(repeated["csv_path"])
    baseline = options["baseline"] or repeated["baseline"]
    return before, started, {**repeated, "baseline": baseline, "json_path": path, "force": True}


def _require_table(path: str | None) -> None:
    """Only a CSV file of results is replaced when a sweep goes on."""
    if path is None or not os.path.isfile(path):
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        if not file.readline(4096).startswith(",".join(ROW_FIELDS[:5])):
            raise click.UsageError(f"{path} is no CSV of gin bench; give it another name, and go on again")


def _resumed(plan: Plan, before: ResultFile) -> Plan:
    try:
        found = resumed(plan, before)
    except ResultsError as error:
        raise click.UsageError(str(error)) from None
    command = before.command if before.command[:2] == ("gin", "bench") else plan.command
    return replace(found, command=command)


def _listing() -> str:
    from gin.cli import found

    width = max(_width(sys.stdout), 40)
    lines = ["tests"]
    for test in TESTS.values():
        lines.append(f"  {test.name} ({format_size(test.min_bytes)} to {format_size(test.max_bytes)} by default)")
        for made in test.operations:
            text = f"{made.name:<17} {made.definition}"
            indent = " " * (22 if width >= 80 else 6)
            lines += textwrap.wrap(text, min(width, 100), initial_indent="    ", subsequent_indent=indent)
    lines.append("backends")
    for state in found.backends(Config.from_sources()):
        text = f"{state.name:<11} " + ("usable" if state.usable else f"not usable: {state.reason}")
        lines += textwrap.wrap(text, min(width, 100), initial_indent="  ", subsequent_indent=" " * 6)
    lines.append("scopes\n  " + ", ".join(SCOPES))
    lines.append("routes")
    for name, about in ROUTES.items():
        lines += textwrap.wrap(f"{name:<7} {about}", min(width, 100), initial_indent="  ", subsequent_indent=" " * 6)
    return "\n".join(lines)


def _launched() -> gin.ranks.Ranks | None:
    """This process's place in the job of a launcher that it runs under, if any."""
    try:
        ranks = gin.ranks.discover()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return None if ranks.job == "single" else ranks


def _rank_counts(asked: tuple[int, ...] | None, job: gin.ranks.Ranks | None) -> tuple[int, ...]:
    if job is None:
        return asked or (2,)
    if asked not in (None, (job.size,)):
        raise click.UsageError(f"--ranks is up to the launcher ({job.source}), which started {job.size}; leave it out")
    return (job.size,)


def _operations(test: str, asked: tuple[str, ...] | None, ranks: int) -> tuple[str, ...]:
    made = {operation.name: operation for operation in TESTS[test].operations}
    names = tuple(made) if asked == ("all",) else asked or tuple(made)[:1]
    for name in names:
        if name not in made:
            raise click.UsageError(f"{test} measures all, or some of {', '.join(made)}; {name!r} is none")
        if ranks < made[name].min_ranks:
            raise click.UsageError(f"{test} of {name} needs at least {made[name].min_ranks} ranks, not {ranks}")
    return names


def _plan(test: str, ranks: int, options: dict[str, Any]) -> Plan:
    definition = TESTS[test]
    operations = _operations(test, options["operations"], ranks)
    smallest = options["min_bytes"]
    largest = options["max_bytes"]
    if smallest is None:
        smallest = definition.min_bytes if largest is None else min(definition.min_bytes, largest)
    if largest is None:
        largest = max(definition.max_bytes, smallest)
    try:
        sizes = sizes_between(smallest, largest, options["step_factor"])
        Config.from_sources(platform=options["platform"], wire=options["wire"])
    except (ValueError, ConfigError) as error:
        raise click.UsageError(str(error)) from None
    except Error as error:
        click.echo(f"gin bench: {error}", err=True)
        raise SystemExit(UNAVAILABLE) from None
    every = options["backend"] == ("all",)
    return Plan(
        test=test,
        backends=NAMES if every else options["backend"],
        required=not every,
        routes=tuple(ROUTES) if options["route"] == "all" else (options["route"],),
        sizes=tuple(sizes),
        operations=operations,
        scopes=options["scope"],
        ctas=options["ctas"],
        threads=options["threads"] or (),
        contexts=options["contexts"] or (),
        iterations=options["iters"],
        warmup=options["warmup"],
        platform=options["platform"],
        wire=options["wire"],
        verify=options["verify"],
        timeout=options["timeout"],
        samples=options["samples"],
        baseline=options["baseline"],
        command=("gin", *sys.argv[1:]),
    )


Outputs = list[tuple[Output, str]]


def _claim_outputs(options: dict[str, Any]) -> Outputs:
    """The files that the results go to, claimed now, so that a long sweep does not end with nowhere to write."""
    wanted = [(options[f"{kind}_path"], kind) for kind in ("json", "csv") if options[f"{kind}_path"] is not None]
    if len(wanted) == 2 and len({path if path == "-" else os.path.realpath(path) for path, _ in wanted}) == 1:
        raise click.UsageError(f"--json and --csv both want {wanted[0][0]}")
    outputs: Outputs = []
    try:
        for path, kind in wanted:
            outputs.append((Output(path, force=options["force"]), kind))
    except FileExistsError:
        _discard(outputs)
        raise click.UsageError(f"{path} exists; give another name, or --force to replace it") from None
    except OSError as error:
        _discard(outputs)
        raise click.UsageError(f"cannot write {path or repr(path)}: {error.strerror}") from None
    return outputs


def _discard(outputs: Outputs) -> None:
    for output, _ in outputs:
        output.discard()


def _sweep(
    plan: Plan,
    ranks: tuple[int, ...],
    launched: bool,
    leads: bool,
    baseline: bool,
    outputs: Outputs,
    before: ResultFile | None,
) -> int:
    """Runs the plan and shows and writes what came of it. Returns the exit status."""
    quiet = any(output.path == "-" for output, _ in outputs)
    shown = sys.stderr if quiet else sys.stdout
    reporter = Reporter(plan, sys.stderr, kept=before.rows if before else (), runs=len(ranks))
    if before is not None:
        reporter.conditions = conditions.kept(before.remarks.get("conditions"))
    if baseline and leads and Config.from_sources(platform=plan.platform).platform != "cuda":
        _show(shown, _baseline_text())
    status = OK
    with reporter:
        try:
            if launched:
                sweep.run(plan, reporter.handle)
            else:
                for count in ranks:
                    sweep.run_here(plan, count, reporter.handle)
        except KeyboardInterrupt:
            status, reporter.interrupted = INTERRUPTED, True
        except Error as error:
            status = _EXIT_CODES.get(type(error).__name__, WRONG)
            if leads:
                click.echo(f"gin bench: {type(error).__name__}: {error}", err=True)
    if not leads:
        return status
    if before is not None and not reporter.begun:
        click.echo(f"gin bench: nothing was measured; {before.path} is as it was", err=True)
        return status
    with undisturbed():
        if reporter.wrong and status == OK:
            status = WRONG
        if reporter.rows or status == OK:
            status = _write(outputs, reporter, status)
        if reporter.rows:
            _show(shown, reporter.text(_width(shown)))
        if reporter.interrupted:
            click.echo(_interrupted_text(outputs, reporter), err=True)
    return status


def _show(stream: IO[str] | None, text: str) -> None:
    """Writes to a terminal or pipe. That nobody reads there is no failure of the sweep."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            click.echo(f"gin bench: cannot write the table: {error.strerror}", err=True)
        abandon(stream)


def _interrupted_text(outputs: Outputs, reporter: Reporter) -> str:
    text = f"gin bench: interrupted; {len(reporter.rows)} rows are complete"
    path = next((output.path for output, kind in outputs if kind == "json" and output.path != "-"), None)
    return text + (f"; gin bench --resume {path} goes on" if path and reporter.rows else "")


def _write(outputs: Outputs, reporter: Reporter, status: int) -> int:
    for output, kind in outputs:
        document = reporter.document(complete=status in (OK, WRONG) and reporter.failure is None)
        try:
            output.write(to_json(document) if kind == "json" else to_csv(reporter.rows))
        except OSError as error:
            click.echo(f"gin bench: cannot write {output.path}: {error.strerror}", err=True)
            if output.path == "-":
                abandon(sys.stdout)
            status = status or WRONG
    return status


def _width(stream: IO[str] | None) -> int:
    """Columns of the terminal; what goes to a file or a pipe is as wide as it needs to be, within reason."""
    if (stream is not None and stream.isatty()) or "COLUMNS" in os.environ:
        return shutil.get_terminal_size((100, 24)).columns
    return 200


def _baseline_text() -> str:
    from gin.bench.baseline import measure

    return "".join(f"# without gin: {figure.name}: {figure.value:.4g} {figure.unit}\n" for figure in measure())
