"""What a person sees of a sweep: progress while it runs, then a header and the table."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO, Any

from gin.bench import results
from gin.bench.plan import Plan, format_size
from gin.bench.sweep import Event
from gin.bench.table import render


class Reporter:
    """Collects a sweep's events and shows its progress on `terminal` when that is one."""

    def __init__(self, plan: Plan, terminal: IO[str]) -> None:
        self.plan = plan
        self.rows: list[results.Row] = []
        self.unavailable: list[Event] = []
        self.failure: Event | None = None
        self.environment: dict[str, Any] = results.environment()
        self.emulated = True
        self._terminal = terminal
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Reporter:
        if self._terminal.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=self._terminal),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("starting ranks, compiling kernels", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def handle(self, event: Event) -> None:
        """Takes one event of gin.bench.sweep."""
        kind = event["event"]
        if kind == "begin":
            self.environment, self.emulated = event["environment"], event["emulated"]
            self._update(total=event["total"], description=self.plan.test)
        elif kind == "row":
            row = event["row"]
            self.rows.append(row)
            size, backend, route = format_size(row["bytes"]), row["backend"], row["route"]
            self._update(completed=len(self.rows), description=f"{size} {backend} {route}")
        elif kind == "unavailable":
            self.unavailable.append(event)
        elif kind == "failure":
            self.failure = event

    def _update(self, **fields: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._task, **fields)

    @property
    def wrong(self) -> int:
        """Elements that were wrong, over all rows."""
        return sum(row["wrong"] or 0 for row in self.rows)

    def document(self, *, complete: bool) -> dict[str, Any]:
        """The JSON document of what was measured."""
        return results.document(
            self.rows, command=self.plan.command, emulated=self.emulated, env=self.environment, complete=complete
        )

    def text(self, width: int) -> str:
        """Header and table, no line longer than `width` columns where 40 suffice."""
        header = "".join(_comment(line, width) for line in self._header())
        return header + "\n" + render(self.rows, self.plan.definition.columns, width)

    def _header(self) -> Iterator[str]:
        plan, env = self.plan, self.environment
        yield f"gin {env['gin']} bench {plan.test}: {shlex.join(plan.command)}"
        if self.emulated:
            yield "EMULATION: timings are not hardware timings"
        yield f"{plan.test}: {plan.definition.definition}"
        yield "median and percentiles by nearest rank over all samples; us; GB/s = 1e9 bytes/s; Mmsg/s = 1e6 messages/s"
        where = {key: env.get(key) for key in ("platform", "wire")}
        yield " ".join(f"{key}={value}" for key, value in where.items() if value) + _numbers(plan, self.rows)
        yield (
            f"{env['cpu']}, {env['cores']} cores usable, {env['system']} {env['kernel']}, Python {env['python']}, "
            f"NumPy {env['numpy']}"
        )
        for name, value in env.get("variables", {}).items():
            yield f"{name}={value}"
        for event in self.unavailable:
            yield f"left out: {event['backend']} {event['route']}: {event['reason']}"
        if not plan.verify:
            yield "NOT VERIFIED: payloads were not checked (--no-verify)"
        few = sorted({row["iterations"] for row in self.rows if row["iterations"] * plan.ctas < 100})
        if few:
            yield f"p99 of fewer than 100 samples is close to the maximum (rows of {_range(few)} iterations)"
        if self.wrong:
            yield f"WRONG DATA: {self.wrong} elements; rows marked with !"


def _numbers(plan: Plan, rows: Sequence[results.Row]) -> str:
    parts = [f" scope={plan.scope} ctas={plan.ctas} threads={plan.threads}"]
    if rows:
        parts.append(f"ranks={rows[0]['ranks']}")
        parts += [f"{name}={_range([row[name] for row in rows])}" for name in ("iterations", "warmup")]
    return " ".join(parts)


def _range(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least}-{most}"


def _comment(line: str, width: int) -> str:
    wrapped = textwrap.wrap(line, max(width, 40) - 2, subsequent_indent="  ", break_on_hyphens=False)
    return "".join(f"# {part}\n" for part in wrapped)
