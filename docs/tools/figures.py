"""Draws what each operation of `gin bench` times: docs/assets/timed-TEST.svg. `python docs/tools/figures.py` writes them."""

from __future__ import annotations

import html
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "Figure", "drawn", "main"]

ASSETS = Path(__file__).parents[1] / "assets"
WIDTH, LEFT, RIGHT, LANE, BOX, LINE = 720, 64, 12, 34, 22, 16  # pixels
SEND, WAIT, WORK = "send", "wait", "work"
_STYLE = """
 text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1b1f24 }
 .name { font-weight: 700; font-size: 13px } .note { fill: #44505c }
 .send { fill: #0060a8 } .wait { fill: #e3e8ee; stroke: #7b8794 } .work { fill: #a34600 }
 .on { fill: #ffffff } .lane { stroke: #b5bec8 }
 .flies { stroke: #1b1f24; stroke-width: 1.3; fill: none; marker-end: url(#tip) } .asks { stroke-dasharray: 4 3 }
 .timed { stroke: #1b1f24; stroke-width: 2; fill: none }
"""


@dataclass(frozen=True)
class Figure:
    """One operation. Times run from 0 to 100.

    boxes   lane, from, to, kind, label
    flies   from lane, at, to lane, at; True for what only asks
    timed   lane, from, to, label: intervals that are measured
    """

    test: str
    name: str
    boxes: Sequence[tuple[int, float, float, str, str]]
    flies: Sequence[tuple[int, float, int, float, bool]]
    timed: Sequence[tuple[int, float, float, str]]
    lanes: Sequence[str] = field(default=("rank 0", "rank 1"))


def _pingpong(name: str, label: str) -> Figure:
    boxes = [(0, 4, 22, SEND, label), (0, 22, 82, WAIT, "wait"), (1, 4, 40, WAIT, "wait"), (1, 42, 60, SEND, label)]
    return Figure("latency", name, boxes, [(0, 22, 1, 40, False), (1, 60, 0, 82, False)], [(0, 4, 82, "half of this")])


def _row(lane: int, start: float, count: int, label: str, width: float = 8) -> list[tuple[int, float, float, str, str]]:
    return [(lane, start + i * width, start + (i + 1) * width - 0.6, SEND, label) for i in range(count)]


def _exchange(lanes: int, at: float, label: str, late: Sequence[float]) -> tuple[list[Any], list[Any]]:
    """Every lane sends to every other, and waits until `late`."""
    boxes: list[Any] = []
    flies: list[Any] = []
    for lane in range(lanes):
        boxes += [(lane, at, at + 14, SEND, label), (lane, at + 14, late[lane], WAIT, "wait for all")]
        flies += [(lane, at + 14, to, late[to], False) for to in range(lanes) if to != lane]
    return boxes, flies


def _figures() -> list[Figure]:
    ranks = ("rank 0", "rank 1", "rank 2")
    barrier = [(lane, 2, 14, WAIT, "barrier") for lane in range(3)]
    swap, crossing = _exchange(3, 14, "put to all", (66, 58, 74))
    there, over = _exchange(3, 14, "dispatch", (47, 43, 50))
    back, again = _exchange(3, 50, "combine", (86, 82, 90))
    answered = [(1, 4, 64, WAIT, "wait for all"), (1, 65, 70, SEND, "ok")]
    return [
        _pingpong("put_signal", "put + signal"),
        _pingpong("put_value", "value + signal"),
        Figure(
            "latency",
            "put_flush",
            [(0, 4, 16, SEND, "put"), (0, 16, 40, WAIT, "flush")],
            [(0, 16, 1, 56, False)],
            [(0, 4, 40, "until the source may be reused")],
        ),
        Figure(
            "latency",
            "put_quiet",
            [(0, 4, 16, SEND, "put"), (0, 16, 82, WAIT, "quiet")],
            [(0, 16, 1, 48, False), (1, 50, 0, 82, True)],
            [(0, 4, 82, "until the data has settled at its target")],
        ),
        Figure(
            "latency",
            "get",
            [(0, 4, 16, SEND, "get"), (0, 16, 82, WAIT, "flush")],
            [(0, 16, 1, 46, True), (1, 50, 0, 82, False)],
            [(0, 4, 82, "until the data is here")],
        ),
        Figure(
            "latency",
            "atomic",
            [(0, 4, 82, WAIT, "atomic_fetch_add")],
            [(0, 8, 1, 44, False), (1, 48, 0, 82, True)],
            [(0, 4, 82, "until the old value is here")],
        ),
        Figure(
            "latency",
            "barrier",
            [(0, 4, 70, WAIT, "barrier"), (1, 24, 64, WAIT, "barrier")],
            [(0, 8, 1, 40, False), (1, 28, 0, 62, False)],
            [(0, 4, 70, "the longest of all ranks"), (1, 24, 64, "")],
        ),
        Figure(
            "bandwidth",
            "put_signal",
            [*_row(0, 4, 4, "put"), (0, 36, 90, WAIT, "wait"), *answered],
            [*((0, 12 + 8 * i, 1, 40 + 8 * i, False) for i in range(4)), (1, 70, 0, 90, False)],
            [(0, 4, 90, "divided by the messages")],
        ),
        Figure(
            "bandwidth",
            "put_signal_bidir",
            [
                *(box for lane in (0, 1) for box in _row(lane, 4, 3, "put")),
                *(box for lane in (0, 1) for box in ((lane, 28, 62, WAIT, "wait"), (lane, 63, 68, SEND, "ok"))),
                *((lane, 68, 90, WAIT, "wait") for lane in (0, 1)),
            ],
            [*((a, 28, 1 - a, 62, False) for a in (0, 1)), *((a, 68, 1 - a, 90, False) for a in (0, 1))],
            [(0, 4, 90, "the slower rank, divided by the pairs"), (1, 4, 90, "")],
        ),
        Figure(
            "bandwidth",
            "get",
            [*_row(0, 4, 4, "get"), (0, 36, 90, WAIT, "flush")],
            [(0, 12, 1, 36, True), *((1, 40 + 8 * i, 0, 66 + 8 * i, False) for i in range(4))],
            [(0, 4, 90, "divided by the messages")],
        ),
        Figure(
            "rate",
            "put",
            [*_row(0, 4, 6, "put", 5), (0, 34, 48, SEND, "ordered signal"), (0, 48, 90, WAIT, "wait"), *answered],
            [(0, 48, 1, 64, False), (1, 70, 0, 90, False)],
            [(0, 4, 90, "divided by the messages")],
        ),
        Figure(
            "alltoall",
            "put_signal",
            [*barrier, *swap],
            crossing,
            [(lane, 14, end, "the longest of all ranks" if lane == 0 else "") for lane, end in enumerate((66, 58, 74))],
            ranks,
        ),
        Figure(
            "moe",
            "dispatch_combine",
            [*barrier, *there, *back],
            [*over, *again],
            [(lane, 14, end, "the longest of all ranks" if lane == 0 else "") for lane, end in enumerate((86, 82, 90))],
            ranks,
        ),
        Figure(
            "overlap",
            "put_signal",
            [
                *((0, 2, 8, SEND, "put"), (0, 8, 32, WAIT, "wait"), (0, 35, 59, WORK, "compute")),
                *((0, 62, 68, SEND, "put"), (0, 68, 92, WORK, "compute"), (0, 92, 98, WAIT, "wait")),
                *((1, 18, 22, SEND, "ok"), (1, 78, 82, SEND, "ok")),
            ],
            [(0, 8, 1, 18, False), (1, 22, 0, 32, False), (0, 68, 1, 78, False), (1, 82, 0, 92, False)],
            [
                (0, 2, 32, "transfer t"),
                (0, 35, 59, "computation c"),
                (0, 62, 98, "both b: hidden is (t + c - b) / min(t, c)"),
            ],
        ),
    ]


FIGURES = _figures()


def _x(time: float) -> float:
    return round(LEFT + time / 100 * (WIDTH - LEFT - RIGHT), 1)


def _label(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{more}>{html.escape(text)}</text>'


def _panel(figure: Figure, definition: str, top: int) -> tuple[list[str], int]:
    """The drawing of one operation and where it ends."""
    out = [_label(4, top + 14, figure.name, ' class="name"')]
    y = top + 14
    for line in textwrap.wrap(definition, 104):
        y += LINE
        out.append(_label(4, y, line, ' class="note"'))
    above = y + 26
    lanes = [above + i * (LANE + 26) for i in range(len(figure.lanes))]
    for name, place in zip(figure.lanes, lanes, strict=True):
        middle = place + BOX / 2
        out.append(_label(4, middle + 4, name))
        out.append(f'<line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{middle}" y2="{middle}"/>')
    for lane, start, end, kind, label in figure.boxes:
        x, width = _x(start), round(_x(end) - _x(start), 1)
        out.append(f'<rect class="{kind}" x="{x}" y="{lanes[lane]}" width="{width}" height="{BOX}" rx="2"/>')
        shade = "" if kind == WAIT else ' class="on"'
        middle = round(x + width / 2, 1)
        out.append(_label(middle, lanes[lane] + 15, label, f'{shade} text-anchor="middle"'))
    for lane, start, to, end, asks in figure.flies:
        down = lanes[to] > lanes[lane]
        y1, y2 = (lanes[lane] + BOX, lanes[to] - 1) if down else (lanes[lane], lanes[to] + BOX + 1)
        kind = "flies asks" if asks else "flies"
        out.append(f'<path class="{kind}" d="M{_x(start)},{y1}L{_x(end)},{y2}"/>')
    for lane, start, end, label in figure.timed:
        y = lanes[lane] - 6
        out.append(f'<path class="timed" d="M{_x(start)},{y + 4}v-8M{_x(start)},{y}H{_x(end)}M{_x(end)},{y + 4}v-8"/>')
        if label:
            anchor = ' text-anchor="end"' if start >= 60 else ""
            out.append(_label(_x(end) if start >= 60 else _x(start) + 4, y - 5, label, anchor))
    return out, lanes[-1] + BOX + 22


def drawn(test: str) -> str:
    """The SVG of a test."""
    from gin.bench.tests import operation

    figures = [figure for figure in FIGURES if figure.test == test]
    parts: list[str] = []
    y = 6
    for figure in figures:
        more, y = _panel(figure, operation(test, figure.name).definition, y)
        parts += more
    about = f"What gin bench {test} times: {', '.join(figure.name for figure in figures)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{about}">',
            f"<title>{about}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3.5" orient="auto">'
            '<path d="M0,0L8,3.5L0,7z"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{y}" rx="6" fill="#f6f8fa"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    """Writes all figures."""
    for test in dict.fromkeys(figure.test for figure in FIGURES):
        (ASSETS / f"timed-{test}.svg").write_text(drawn(test), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
