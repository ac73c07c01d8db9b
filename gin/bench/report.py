"""What a person sees of a sweep: progress while it runs, then a header and the table."""

from __future__ import annotations

import contextlib
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO, Any

from gin.bench import conditions, doubts, results
from gin.bench.plan import Plan, format_size
from gin.bench.results import Row
from gin.bench.resume import identity_of
from gin.bench.sweep import Event
from gin.bench.table import render_all
from gin.bench.tests import operation


class Reporter:
    """Collects a sweep's events and shows its progress on `terminal` when that is one.

    kept  rows that were measured before
    runs  how often the plan is run, for different numbers of ranks
    """

    def __init__(self, plan: Plan, terminal: IO[str] | None, *, kept: Sequence[Row] = (), runs: int = 1) -> None:
        self.plan = plan
        self.rows: list[Row] = list(kept)
        self._kept = [identity_of(row) for row in kept]
        self.unavailable: list[Event] = []
        self.failure: Event | None = None
        self.environment: dict[str, Any] = results.environment()
        self.emulated = True
        self.conditions: dict[str, Any] = {}
        self.interrupted = False
        self.begun = False
        self._runs = runs
        self._measured = 0
        self._before = 0  # rows of earlier runs
        self._terminal = terminal
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Reporter:
        if self._terminal is not None and self._terminal.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=self._terminal),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            with contextlib.suppress(OSError):  # a terminal that has gone
                self._progress.stop()

    def handle(self, event: Event) -> None:
        """Takes one event of gin.bench.sweep."""
        kind = event["event"]
        if kind == "begin":
            self.environment, self.emulated, self.begun = event["environment"], event["emulated"], True
            self._before = self._measured
            self._update(total=self._before + event["total"] * self._runs, description=self.plan.test)
            self._runs -= 1
        elif kind == "point":
            self._update(description=f"{format_size(event['bytes'])} {event['shape'].split()[0]}")
        elif kind == "row":
            self._take(event["row"])
            self._measured += 1
            self._update(completed=self._measured)
        elif kind == "unavailable" and event not in self.unavailable:
            self.unavailable.append(event)
        elif kind == "end":
            self.conditions = conditions.merge([self.conditions, event["conditions"]])
        elif kind == "failure":
            self.failure = event

    def _take(self, row: Row) -> None:
        """Adds a row, or puts it in the place of one that was measured before."""
        identity = identity_of(row)
        for index, kept in enumerate(self._kept):
            if kept == identity:
                self.rows[index] = row
                return
        self.rows.append(row)

    def _update(self, **fields: Any) -> None:
        if self._progress is not None:
            try:
                self._progress.update(self._task, **fields)
            except OSError:
                self._progress = None

    @property
    def wrong(self) -> int:
        """Elements that were wrong, over all rows."""
        return sum(row["wrong"] or 0 for row in self.rows)

    def document(self, *, complete: bool) -> dict[str, Any]:
        """The JSON document of what was measured."""
        remarks: dict[str, Any] = {"conditions": self.conditions}
        if self.unavailable:
            remarks["left_out"] = [{k: v for k, v in event.items() if k != "event"} for event in self.unavailable]
        if self.interrupted:
            remarks["interrupted"] = True
        if self.failure:
            remarks["failure"] = {k: v for k, v in self.failure.items() if k != "event"}
        return results.document(
            self.rows,
            command=self.plan.command,
            emulated=self.emulated,
            env=self.environment,
            complete=complete,
            remarks=remarks,
        )

    def text(self, width: int) -> str:
        """Header and table, no line longer than `width` columns where 40 suffice."""
        header = "".join(_comment(line, width) for line in self._header())
        return header + "\n" + render_all(self.rows, self.plan.definition.columns, width)

    def _operations(self) -> tuple[str, ...]:
        return self.plan.operations or (self.plan.definition.operations[0].name,)

    def _header(self) -> Iterator[str]:
        plan, env = self.plan, self.environment
        yield f"gin {env['gin']} bench {plan.test}: {shlex.join(plan.command)}"
        if self.emulated:
            yield "EMULATION: timings are not hardware timings"
        for name in self._operations():
            made = operation(plan.test, name)
            yield f"{plan.test} {name}: {made.definition}"
        if any(operation(plan.test, name).timed_by == "leader" for name in self._operations()):
            yield "ranks 0 and 1 begin in turn and take the times; the slower end is what is shown"
        yield (
            "median and percentiles by nearest rank over all samples, +-%: the median's 95 % interval; us; "
            "GB/s = 1e9 bytes/s; Mmsg/s = 1e6 messages/s"
        )
        where = {key: env.get(key) for key in ("platform", "wire")}
        yield " ".join(f"{key}={value}" for key, value in where.items() if value) + _numbers(self.rows)
        yield (
            f"{env['cpu']}, {conditions.counted(env['cores'])} usable, {env['system']} {env['kernel']}, "
            f"Python {env['python']}, NumPy {env['numpy']}"
        )
        if env.get("gpus"):
            yield f"{', '.join(dict.fromkeys(env['gpus']))} ({len(env['gpus'])}), driver {env.get('driver', 'unknown')}"
        if env.get("binding"):
            yield f"cores by rank: {'; '.join(env['binding'])}"
        if "clock" in env:
            clock = env["clock"]
            yield f"clock of the kernels: steps of {clock['resolution_ns']} ns, {clock['reading_ns']} ns for a reading"
        for name, value in env.get("variables", {}).items():
            yield f"{name}={value}"
        for event in self.unavailable:
            yield f"left out: {event['backend']} {event['route']}: {event['reason']}"
        if not plan.verify:
            yield "NOT VERIFIED: payloads were not checked (--no-verify)"
        yield from self._doubts()
        if self.wrong:
            yield f"WRONG DATA: {self.wrong} elements; rows marked with !"

    def _doubts(self) -> Iterator[str]:
        """What makes the figures less sure than they look."""
        rows = self.rows
        yield from doubts.of_rows(rows, self.environment.get("clock", {}).get("resolution_ns", 0) / 1e3)
        if self.environment.get("platform") == "sim":
            return  # simulated time does not hang on what else the machine does
        ranks = max((row["ranks"] for row in rows), default=1)
        yield from conditions.warnings(self.conditions, ranks, self.emulated)


def _numbers(rows: Sequence[Row]) -> str:
    names = ("scope", "ctas", "threads", "contexts", "ranks", "iterations", "warmup")
    return "".join(f" {name}={doubts.span([row[name] for row in rows if name in row])}" for name in names if rows)


def _comment(line: str, width: int) -> str:
    wrapped = textwrap.wrap(line, max(width, 40) - 2, subsequent_indent="  ", break_on_hyphens=False)
    return "".join(f"# {part}\n" for part in wrapped)
