"""MkDocs calls these while it builds the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

_PLACES = [str(Path(__file__).parent), str(Path(__file__).parents[2])]  # these tools, and the package's source


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page filled in. Raises ValueError for marks that mean nothing."""
    sys.path[:0] = [place for place in _PLACES if place not in sys.path]
    from expand import expanded

    return expanded(markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Raises ValueError for a page that loads something from elsewhere: the site is read without a network."""
    for page in Path(config.site_dir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        found = re.search(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"', text)
        if found:
            raise ValueError(f"{page}: {found[0]}")
