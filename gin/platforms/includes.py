"""The headers of the user's that a kernel includes: what is compiled depends on them as on its source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["folders_of_flags", "includes_digest"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*([<"])([^<>"\n]+)[>"]', re.MULTILINE)
_FOLDER_FLAGS = ("-I", "-iquote", "-isystem", "-idirafter")
_MOST = 2000  # files


def includes_digest(source: str, folders: Sequence[Path]) -> str:
    """Of the names and contents of what a source includes from these folders, or by a whole path, and of what that includes.

    By its text: a header in a branch that is not compiled counts too, one whose name a macro makes does not.
    """
    digest = hashlib.sha256()
    seen: set[Path] = set()
    left: list[tuple[str, Path | None]] = [(source, None)]
    while left and len(seen) < _MOST:
        text, beside = left.pop()
        for kind, name in _INCLUDE.findall(text):
            places = [beside, *folders] if kind == '"' and beside is not None else folders
            path = _find(name, places)
            if path is None or path in seen:
                continue
            seen.add(path)
            data = path.read_bytes()
            digest.update(str(path).encode() + b"\0" + hashlib.sha256(data).digest())
            left.append((data.decode(errors="replace"), path.parent))
    return digest.hexdigest()


def _find(name: str, places: Sequence[Path]) -> Path | None:
    """The file that an include names; a whole path needs no place."""
    for place in places or [Path("/")]:
        path = place / name
        if path.is_file():
            return path.resolve()
    return None


def folders_of_flags(flags: Sequence[str]) -> list[Path]:
    """Where a compiler's flags let it look for headers."""
    words = iter(flags)
    found = []
    for word in words:
        if word in _FOLDER_FLAGS:
            found.append(Path(next(words, ".")))
        elif word.startswith("-I"):
            found.append(Path(word[2:]))
    return found
