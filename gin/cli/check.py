"""`gin check`: a program under adversarial delivery, seed after seed."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import click

from gin.backends import NAMES
from gin.bench.results import Output
from gin.cli.interrupts import noticed, undisturbed
from gin.sim.check import LATENESS, TURNS, Failure, Plan, Report, check
from gin.sim.launch import Script
from gin.sim.model import PRESETS
from gin.sim.options import FAULTS

__all__ = ["command"]

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_LAST_SEED = (1 << 63) - 1
_SETTINGS = ("policy", "faults", "model", "route")  # options that are GIN_* variables

EPILOG = """\b
Examples:
  gin check examples/halo.py --ranks 4
  gin check shift.py --seeds 2000 --backend all --policy pct
  gin check train.py --faults dead,refuse -- --steps 3
  gin check shift.py --seed 17 --trace run.txt

\b
Exit status: 0 every run passed, 1 one failed, 2 usage, 130 interrupted before the last.

\b
Faults: {faults}
Models: {models}"""


def _epilog() -> str:
    faults = "\n        ".join(about for _, about in FAULTS.values())
    models = "\n        ".join(f"{preset.name}: {preset.about}" for preset in PRESETS.values())
    return EPILOG.format(faults=faults, models=models)


def _backends(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str | None, ...]:
    if value is None:
        return (None,)
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if names == ("all",):
        return NAMES
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"{name!r} is none of all, {', '.join(NAMES)}", context, parameter)
    return names


@click.command("check", epilog=_epilog(), short_help="Run a program under adversarial delivery, seed after seed.")
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE", help="Run a Python module instead of a program.")
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), default=2, show_default=True, help="Ranks to simulate.")
@click.option("--seeds", type=click.IntRange(min=1), help="How many runs.  [default: 100, or 1 with --seed]")
@click.option(
    "--seed", type=click.IntRange(0, _LAST_SEED), help="The first run's seed; the others follow.  [default: 0]"
)
@click.option("--backend", callback=_backends, help="all, or names with commas.  [default: as the program chooses]")
@click.option("--policy", type=click.Choice(["random", "pct"]), help="Random, or by priority with few preemptions.")
@click.option("--faults", help="What goes wrong, with commas between.")
@click.option("--model", help="The network that delays are drawn over, with key=value after commas.")
@click.option(
    "--route", type=click.Choice(["native", "direct", "auto"]), help="As gin.init takes it.  [default: native]"
)
@click.option(
    "--turns",
    type=click.IntRange(min=1000),
    default=TURNS,
    show_default=True,
    help="Turns of threads, proxies and messages after which a run does not end.",
)
@click.option("--trace", "trace_path", metavar="FILE|-", help="Write all events of the run that failed.")
@click.option("--json", "json_path", metavar="FILE|-", help="Write what was found as JSON.")
@click.option("--force", is_flag=True, help="Replace result files that exist.")
@click.pass_context
def command(
    context: click.Context, /, program: str | None, arguments: tuple[str, ...], module: str | None, **options: Any
) -> None:
    """Run PROGRAM as simulated ranks under many seeds and tell the story of the first run that breaks.

    Each seed is one interleaving of all threads, proxies and messages, as hostile as the contract allows; the same seed
    is the same run on any machine. Kernels check peers, places and ids (GIN_CHECK=1) unless the setting check is given
    otherwise. What follows -- are the program's own arguments.
    """
    if (program is None) == (module is None):
        raise click.UsageError("Give a program or -m MODULE, and not both.")
    script = Script.of_module(module, arguments) if module is not None else Script.of_file(str(program), arguments)
    seeds = options["seeds"] or (100 if options["seed"] is None else 1)
    reports: list[Report] = []
    with noticed() as interrupted, contextlib.ExitStack() as stack:
        outputs = _claim(options, stack)
        quiet = any(output.path == "-" for output in outputs.values())
        stopped = False
        try:
            for backend in options["backend"]:
                settings = {"backend": backend, **{name: options[name] for name in _SETTINGS}}
                variables = {f"GIN_{name.upper()}": value for name, value in settings.items() if value is not None}
                plan = Plan(script, options["ranks"], options["seed"] or 0, seeds, variables, options["turns"])
                reports.append(_check(plan, interrupted))
                _tell(reports[-1], backend, quiet)
                if stopped := reports[-1].interrupted:
                    break
        except KeyboardInterrupt:
            stopped = True
        if stopped and (left := options["backend"][len(reports) :]):
            click.echo(f"not run: {', '.join(name or 'the program' for name in left)}", err=True)
        with undisturbed():
            _write(outputs, reports)
    failed = any(report.failure for report in reports)
    context.exit(FAILED if failed else INTERRUPTED if stopped else OK)


def _check(plan: Plan, interrupted: Callable[[], None]) -> Report:
    shows = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if shows:
            _progress(done, total)
        interrupted()

    report = check(plan, progress)
    if shows and report.runs < plan.seeds:
        sys.stderr.write("\n")
    return report


def _tell(report: Report, backend: str | None, quiet: bool) -> None:
    plan = report.plan
    shown = sys.stderr if quiet else sys.stdout
    label = f"{backend}: " if backend else ""
    rate = report.operations / report.seconds if report.seconds else 0
    what = f"{label}{report.runs} of {plan.seeds} seeds run, {_count(plan.ranks, 'rank')}, "
    took = f"{_count(report.operations, 'operation')} in {report.seconds:.2f} s ({rate:,.0f}/s)"
    shown.write(f"{what}{took}: {_outcome(report)}\n")
    if report.failure is not None:
        shown.write("\n".join(_story(report.failure)) + "\n")
        if report.interrupted:
            shown.write("interrupted while the cause was looked for: the replay looks again\n")
    elif report.interrupted:
        shown.write(f"go on: {plan.replay(plan.first + report.runs, plan.seeds - report.runs)}\n")
    shown.flush()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _outcome(report: Report) -> str:
    if report.failure is not None:
        return "FAILED"
    if report.interrupted:
        return "passed, then interrupted" if report.runs else "interrupted"
    return "passed"


def _progress(done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        sys.stderr.write(f"\r{done} of {total}{'' if done < total else chr(10)}")
        sys.stderr.flush()


def _story(failure: Failure) -> Iterator[str]:
    yield f"seed {failure.seed}: {failure.kind} on rank {failure.rank}"
    yield textwrap.indent(failure.error if failure.waiting else failure.traceback.rstrip(), "  ")
    if failure.output.strip() and failure.kind != "assertion":
        yield "output of that run"
        yield textwrap.indent("\n".join(failure.output.rstrip().splitlines()[-20:]), "  ")
    if failure.story is not None:
        yield ""
        other = "" if failure.story_seed == failure.seed else f", as it shows with seed {failure.story_seed}"
        yield f"{'perhaps' if failure.guess else 'cause'}: {failure.story.cause}{other}"
        yield from _table(
            [(f"{s.time_ns / 1e3:.3f} us", f"rank {s.rank}", s.text, s.where) for s in failure.story.steps]
        )
        yield from textwrap.wrap(failure.story.rule, 110, initial_indent="  ", subsequent_indent="  ")
    elif not failure.of_gin:
        alike = ", and it fails alike when nothing comes late" if LATENESS in failure.simplified else ""
        yield f"cause: none that it knows{alike}; --trace FILE writes all that happened"
    if failure.simplified:
        yield f"not needed for it: {', '.join(failure.simplified)}"
    if not failure.steady:
        yield "The same seed ran differently the second time: the program takes time, addresses or chance from elsewhere."
    yield f"replay: {failure.replay}"


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return [
        f"  {time:>{widths[0]}}  {rank:<{widths[1]}}  {text:<{widths[2]}}  {where}".rstrip()
        for time, rank, text, where in rows
    ]


def _claim(options: dict[str, Any], stack: contextlib.ExitStack) -> dict[str, Output]:
    """The files that results go to, before the runs. The stack's end removes what was not written."""
    outputs: dict[str, Output] = {}
    for kind in ("json", "trace"):
        path = options[f"{kind}_path"]
        if path is None:
            continue
        try:
            outputs[kind] = Output(path, force=options["force"])
        except OSError as error:
            raise click.UsageError(f"cannot write {path}: {error.strerror}; another name, or --force") from None
        stack.callback(outputs[kind].discard)
    return outputs


def _write(outputs: dict[str, Output], reports: list[Report]) -> None:
    if "json" in outputs:
        outputs["json"].write(json.dumps([report.document() for report in reports], indent=1) + "\n")
    if "trace" in outputs:
        lines = []
        for report in reports:
            trace = report.failure.trace if report.failure else None
            lines += [str(event) for event in trace.events] if trace else []
        outputs["trace"].write("\n".join(lines) + "\n")
