"""The report as one HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gin.bench.load import ResultFile
from gin.report.data import payload, to_json

__all__ = ["render"]

ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "chart.js", "table.js", "page.js")


def render(files: Sequence[ResultFile], title: str) -> str:
    """The page: its style, scripts and data inside it. It asks for nothing over a network. Without its scripts it shows
    what was found, in words."""
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    script = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    data = payload(files, title)
    parts = {
        "@TITLE@": html.escape(title),
        "@WORDS@": _words(data),
        "@STYLE@": (ASSETS / "style.css").read_text(encoding="utf-8"),
        "@DATA@": to_json(data),
        "@SCRIPT@": script,
    }
    # All at once: what is put in may hold such marks itself.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], page)


def _words(data: Mapping[str, Any]) -> str:
    """Warnings and findings, for a reader without scripts."""
    heads = ("file", "what", "bytes", "best", "level", "next", "doubt")
    told = ("file", "test", "bytes", "best", "level with it (within 2 %, or not told apart)", "then", "in doubt")
    warnings = "".join(f'<p class="warning">{html.escape(text)}</p>' for text in data["warnings"])
    head = "".join(f'<th class="text">{name}</th>' for name in told)
    lines = (
        "".join(f'<td class="text wide">{html.escape(line[name])}</td>' for name in heads) for line in data["findings"]
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f'<div class="scroll"><table class="summary"><tr>{head}</tr>{body}</table></div>' if body else ""
    routes = "; ".join(f"{name}: {about}" for name, about in data["routes"].items())
    return f"<h1>{html.escape(data['title'])}</h1>{warnings}{table}<p>{html.escape(routes)}</p>"
