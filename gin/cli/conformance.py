"""`gin conformance`: the contract, case by case, on any backend."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import click

import gin.ranks
from gin.backends import NAMES
from gin.bench.results import Output, environment
from gin.cli.interrupts import terminated_as_interrupted
from gin.conformance.plan import ROUTES, Job, Plan
from gin.conformance.registry import all_cases, select
from gin.conformance.results import FAIL, PASS, REFUSED, SKIPPED, Result, document, to_json
from gin.conformance.runner import Event, Launch, run, start_here
from gin.conformance.table import render
from gin.conformance.wire import OVERTAKING
from gin.errors import ConfigError, Error, UnsupportedError

__all__ = ["command"]

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130

EPILOG = """\b
Examples:
  gin conformance
  gin conformance --backend nvshmem,nccl_gin --case 'order.*' --case signal
  gin conformance --platform cuda --ranks 2 --json h200.json
  gin run -n 2 gin conformance --wire verbs --backend ibrc_proxy

\b
Exit status: 0 every case passed or was refused by name, 1 a case failed, 2 usage, 3 nothing could be run here,
130 interrupted."""


def _names(known: Sequence[str]) -> Any:
    def parse(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
        if names == ("all",):
            return tuple(known)
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}", context, parameter)
        return names

    return parse


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        numbers = tuple(sorted({int(text) for text in value.split(",")}))
    except ValueError:
        numbers = (0,)
    if not all(1 <= number <= 4096 for number in numbers):
        raise click.BadParameter(f"{value!r}: numbers from 1 to 4096 with commas between them", context, parameter)
    return numbers


@click.command("conformance", epilog=EPILOG, short_help="Check the contract, case by case, on any backend.")
@click.option("--backend", callback=_names(NAMES), default="all", show_default=True, help="all, or names with commas.")
@click.option(
    "--route",
    callback=_names((*ROUTES, "auto")),
    default="direct,native",
    show_default=True,
    help="Routes, with commas.",
)
@click.option("--platform", help="Where kernels run.  [default: as configured]")
@click.option("--wire", help="What proxies and emulated backends post to.  [default: as configured]")
@click.option("--ranks", callback=_numbers, help="Numbers of ranks, with commas.  [default: as each case says]")
@click.option("--case", "patterns", multiple=True, metavar="GLOB", help="Only cases like this; may be repeated.")
@click.option(
    "--overtake", is_flag=True, help="On a wire on which later requests overtake earlier ones, where they may."
)
@click.option("--check", is_flag=True, help="With range checks compiled into the kernels.")
@click.option(
    "--patience",
    type=click.FloatRange(1, 1000),
    default=1.0,
    metavar="FACTOR",
    help="Let everything take so many times as long, where processors are emulated.",
)
@click.option("--json", "json_path", metavar="FILE|-", help="Write the results as JSON.")
@click.option("--force", is_flag=True, help="Replace a result file that exists.")
@click.option("--list", "listing", is_flag=True, help="Say which cases there are, and end.")
@click.option("-v", "--verbose", is_flag=True, help="Tell of each case when it has ended.")
@click.pass_context
def command(context: click.Context, /, patterns: tuple[str, ...], listing: bool, **options: Any) -> None:
    """Run every promise of the device API as a case, and show a table of cases and backends.

    A case passes, fails, or is refused: a backend that lacks a capability has to say so by name. Every job of cases runs in
    processes of its own, and again in new ones after a failure. Starts its ranks on this machine, or is one of them under a
    launcher (gin run, torchrun, mpirun, srun).
    """
    try:
        cases = select(patterns)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if listing:
        for case in cases:
            click.echo(f"{case.name:<44}  {case.promise:<22}  {case.summary}")
        return
    plan = Plan(
        cases,
        options["backend"],
        options["route"],
        options["ranks"],
        options["platform"],
        options["wire"],
        {"check": True} if options["check"] else {},
        OVERTAKING if options["overtake"] else {},
        options["patience"],
    )
    context.exit(_run(plan, options))


def _run(plan: Plan, options: dict[str, Any]) -> int:
    try:
        platform, _ = plan.where
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    ranks = _launched()
    if ranks is None:
        return _follow(plan, platform, options, start_here, leads=True)
    from gin.conformance.launched import Launched

    if plan.ranks is not None and plan.ranks != (ranks.size,):
        raise click.UsageError(f"--ranks, but the launcher ({ranks.source}) started {ranks.size}; leave --ranks out")
    plan = Plan(**{**vars(plan), "ranks": (ranks.size,)})
    processes = Launched()
    try:
        return _follow(plan, platform, options, processes.launch, leads=ranks.rank == 0)
    finally:
        processes.close()


def _launched() -> gin.ranks.Ranks | None:
    """This process's place in the job of a launcher that it runs under, if any."""
    try:
        ranks = gin.ranks.discover()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return None if ranks.job == "single" else ranks


def _follow(plan: Plan, platform: str, options: dict[str, Any], launch: Launch, *, leads: bool) -> int:
    """Runs the plan; the leading process shows and writes what came of it. Returns the exit status."""
    output = _claim(options) if leads and options["json_path"] else None
    results: list[Result] = []
    status = OK
    progress = _Progress(options["verbose"]) if leads else None
    try:
        with terminated_as_interrupted() if launch is start_here else contextlib.nullcontext():
            for result in run(plan, launch, progress.heard if progress else None):
                results.append(result)
                if progress:
                    progress.result(result)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except UnsupportedError as error:
        click.echo(f"gin conformance: {error}", err=True)
        status = UNAVAILABLE
    finally:
        if progress:
            progress.end()
    status = status or _status(results)
    if leads:
        if status == INTERRUPTED:
            click.echo("gin conformance: interrupted: the table has the cases that had ended, and no others", err=True)
        shown = sys.stderr if output is not None and output.path == "-" else sys.stdout
        shown.write(render(results))
        if output is not None:
            status = _write(output, results, platform, complete=status in (OK, FAILED), status=status)
    return status


def _status(results: Sequence[Result]) -> int:
    """Cases that open communicators themselves can pass where none can be opened: what they want may be an error."""
    if any(result.outcome == FAIL for result in results):
        return FAILED
    own = {name for name, case in all_cases().items() if case.opens}
    if not any(result.outcome == REFUSED for result in results):
        own = set()
    return OK if any(result.outcome == PASS and result.case not in own for result in results) else UNAVAILABLE


def _claim(options: dict[str, Any]) -> Output:
    path = options["json_path"]
    try:
        return Output(path, force=options["force"])
    except FileExistsError:
        raise click.UsageError(f"{path} exists; give another name, or --force to replace it") from None
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None


def _write(output: Output, results: Sequence[Result], platform: str, *, complete: bool, status: int) -> int:
    text = to_json(
        document(
            results,
            command=("gin", *sys.argv[1:]),
            emulated=platform != "cuda",
            env={**environment(), "platform": platform},
            complete=complete,
        )
    )
    try:
        output.write(text)
    except (OSError, Error) as error:
        click.echo(f"gin conformance: cannot write {output.path}: {error}", err=True)
        return status or FAILED
    return status


class _Progress:
    """What is going on, on standard error."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._live = sys.stderr.isatty()
        self._where = ""
        self._count = {PASS: 0, FAIL: 0, REFUSED: 0}

    def heard(self, job: Job, event: Event) -> None:
        where = f"{job.backend} {job.route}, {job.ranks} rank{'s' if job.ranks > 1 else ''}"
        if where != self._where:
            self.end()
            self._where = where
        if event["event"] == "compile":
            self._show(f"{where}: compiling {event['kernels']} kernels")
        elif event["event"] == "begin":
            self._show(f"{where}: {event['case']}")

    def result(self, result: Result) -> None:
        if result.outcome == SKIPPED:
            return
        self._count[result.outcome] += 1
        if self._verbose or result.outcome == FAIL:
            self._show("")
            reason = f": {result.reason}" if result.reason else ""
            where = f"{result.backend} {result.route} {result.ranks}"
            click.echo(f"{result.outcome:<7}  {where}  {result.case}  {result.seconds:.2f} s{reason}", err=True)

    def end(self) -> None:
        """The line of a job that has ended."""
        if self._where and any(self._count.values()):
            self._show("")
            told = ", ".join(f"{number} {outcome}" for outcome, number in self._count.items() if number)
            click.echo(f"{self._where}: {told}", err=True)
        self._count = dict.fromkeys(self._count, 0)

    def _show(self, text: str) -> None:
        if self._live:
            click.echo(f"\r\x1b[K{text[:100]}", nl=False, err=True)
