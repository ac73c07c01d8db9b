"""The headers of the user's that a kernel includes: what is compiled depends on them as on its source."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["files_of_flags", "folders_of_flags", "includes_digest"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*([<"])([^<>"\n]+)[>"]', re.MULTILINE)
_FOLDER_FLAGS = ("-I", "-iquote", "-isystem", "-idirafter")
_FOLDER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")
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
            try:
                data = path.read_bytes()
            except OSError:  # the compiler says so
                data = b""
            digest.update(str(path).encode() + b"\0" + hashlib.sha256(data).digest())
            left.append((data.decode(errors="replace"), path.parent))
    return digest.hexdigest()


def _find(name: str, places: Sequence[Path]) -> Path | None:
    """The file that an include names; a whole path needs no place."""
    for place in places or [Path("/")]:
        try:
            path = (place / name).resolve()
            if path.is_file():
                return path
        except (OSError, ValueError, RuntimeError):  # no name of a file; links that lead in a circle
            continue
    return None


def folders_of_flags(flags: Sequence[str]) -> list[Path]:
    """Where a compiler's flags, and the variables that compilers read, let it look for headers."""
    words = iter(flags)
    found = []
    for word in words:
        if word in _FOLDER_FLAGS:
            found.append(Path(next(words, ".")))
        elif word.startswith("-I"):
            found.append(Path(word[2:]))
    for variable in _FOLDER_VARIABLES:
        found += [Path(place or ".") for place in os.environ.get(variable, "").split(os.pathsep) if place]
    return found


def files_of_flags(flags: Sequence[str]) -> str:
    """Source that includes what a compiler's flags make it include."""
    words = iter(flags)
    return "".join(f'#include "{next(words, "")}"\n' for word in words if word in ("-include", "-imacros"))
