"""The report as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from gin.bench.load import ResultFile
from gin.report.data import payload, to_json

__all__ = ["render"]

ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "chart.js", "table.js", "page.js")


def render(files: Sequence[ResultFile], title: str) -> str:
    """The page: its style, scripts and data inside it. It asks for nothing over a network."""
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    script = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    parts = {
        "@TITLE@": html.escape(title),
        "@STYLE@": (ASSETS / "style.css").read_text(encoding="utf-8"),
        "@DATA@": to_json(payload(files, title)),
        "@SCRIPT@": script,
    }
    for mark, text in parts.items():
        before, found, after = page.partition(mark)
        assert found, mark
        page = before + text + after
    return page
