"""Comments and docstrings of the source as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["markdown", "row"]

_FIELD = re.compile(r"^ {0,4}((?:[\w*]+(?:, [\w*]+)*|`[^`]+`)) {2,}(\S.*)$")

_FULL = re.compile(r"^ {0,4}((?:\w+, )+\w+) (\S.*)$")  # names so long that one space is left


def markdown(text: str) -> str:
    """A comment as Markdown: its paragraphs, and its lines of `name  meaning` as a list."""
    lines: list[str] = []
    listing = False
    for line in text.strip("\n").splitlines():
        field = _FIELD.match(line)
        if field:
            if not listing and lines and lines[-1]:
                lines.append("")
            lines.append(f"- `{field[1].strip('`')}`: {_plain(field[2])}")
            listing = True
        elif listing and (names := _FULL.match(line)):
            lines.append(f"- `{names[1]}`: {_plain(names[2])}")
        elif listing and line.startswith("  ") and line.strip():
            lines[-1] += " " + _plain(line.strip())
        else:
            if listing and line.strip():
                lines.append("")
            listing = False
            lines.append(_plain(line.strip()))
    return "\n".join(lines).strip()


def _plain(text: str) -> str:
    """Text whose marks mean themselves, except code between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>|\[\]])", r"\\\1", part) for part in parts)


def row(cells: Iterable[object]) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
