"""The curves of a report as PNG, one file per test and operation, drawn by matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gin.bench.load import ResultFile
from gin.bench.plan import format_size
from gin.bench.tests import TESTS
from gin.compare.join import Located, located
from gin.compare.ratio import METRICS, estimate

__all__ = ["pictures"]

_COLOURS = ("#0060a8", "#c25400", "#007a5a", "#9b3f86", "#6b5b00", "#4b4bc8", "#a4262c", "#3d4650")
_MARKERS, _DASHES = "osD^", ("-", "--", ":", "-.")
_FIXED = ("platform", "wire", "ranks", "scope", "ctas", "threads", "contexts")


def pictures(files: Sequence[ResultFile]) -> Iterator[tuple[str, bytes]]:
    """Name and PNG of each curve. Where several geometries were measured, a picture for each. Raises ImportError."""
    import matplotlib

    matplotlib.use("Agg")
    rows = [row for row in located(files) if not row["wrong"]]
    groups: dict[tuple[Any, ...], list[Located]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("test", "op", *_FIXED)), []).append(row)
    taken: dict[str, int] = {}
    for (test, op, *fixed), members in groups.items():
        stem = re.sub(r"[^\w-]", "_", f"{test}-{op}", flags=re.ASCII)[:100]
        taken[stem] = taken.get(stem, 0) + 1
        number = f"-{taken[stem]}" if taken[stem] > 1 else ""
        facts = " ".join(f"{name}={value}" for name, value in zip(_FIXED, fixed, strict=True) if value is not None)
        emulated = any(file.emulated for file in files)
        yield f"{stem}{number}.png", _picture(test, op, facts, members, emulated)


def _literal(text: str) -> str:
    """Text that matplotlib takes neither for a formula nor for a label to hide."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _picture(test: str, op: str, facts: str, rows: Sequence[Located], emulated: bool) -> bytes:
    from matplotlib.figure import Figure

    metric = TESTS[test].columns[0] if test in TESTS and TESTS[test].columns[0] in METRICS else "median_us"
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[str, ...], list[Located]] = {}
    for row in rows:
        lines.setdefault((row["file"], row["backend"], row["route"]), []).append(row)
    several = len({row["file"] for row in rows}) > 1
    places = [list(dict.fromkeys(key[i] for key in lines)) for i in range(3)]
    for key, members in lines.items():
        file, backend, route = (place.index(part) for place, part in zip(places, key, strict=True))
        members = sorted(members, key=lambda row: row["bytes"])
        found = [(row["bytes"], estimate(row.row, metric)) for row in members]
        drawn = [(nbytes, value) for nbytes, value in found if value is not None and value.value > 0]
        style: dict[str, Any] = {"color": _COLOURS[backend % 8], "linestyle": _DASHES[route % 4]}
        marker = _MARKERS[(file if several else route) % 4]
        label = _literal(" ".join(key if several else key[1:]))
        sizes = [nbytes for nbytes, _ in drawn]
        axes.plot(sizes, [value.value for _, value in drawn], label=label, marker=marker, markersize=4, **style)
        banded = [(nbytes, value) for nbytes, value in drawn if value.low is not None and value.high is not None]
        axes.fill_between(
            [nbytes for nbytes, _ in banded],
            [value.low or 0.0 for _, value in banded],
            [value.high or 0.0 for _, value in banded],
            color=style["color"],
            alpha=0.16,
        )
    axes.set_xscale("symlog", base=2, linthresh=1) if any(row["bytes"] == 0 for row in rows) else axes.set_xscale(
        "log", base=2
    )
    axes.set_yscale("log")
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xticks(sizes[:: -(-len(sizes) // 10)], [format_size(n) for n in sizes[:: -(-len(sizes) // 10)]])
    axes.minorticks_off()
    axes.set_xlabel("bytes")
    axes.set_ylabel(METRICS[metric])
    axes.set_title(_literal(f"{test}: {op}{' (emulation)' if emulated else ''}\n{facts}"), fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=200, metadata={"Software": None})
    return made.getvalue()
