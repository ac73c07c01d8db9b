"""Values of settings as text: sizes, durations, lists of ranks, and parsers that say what would have been right."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "Parser",
    "choice",
    "format_duration",
    "format_ranks",
    "format_size",
    "integer",
    "optional",
    "parse_bool",
    "parse_duration",
    "parse_flags",
    "parse_path",
    "parse_size",
    "parse_text",
    "size_between",
]

Parser = Callable[[object], Any]

# Parsers take text or the TOML value and raise ValueError with what would have been right.

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?) ?(ns|us|ms|s|sec|min|m|h|)", re.IGNORECASE)
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "": 1, "min": 60, "m": 60, "h": 3600}
_LARGEST = (1 << 63) - 1
_LONGEST = 1e9  # seconds; a deadline in nanoseconds must fit 64 bits
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def parse_size(value: object) -> int:
    """Bytes: a number, or text such as 64K, 1M, 2GiB (powers of 1024)."""
    expected = "a size in bytes, such as 4096, 64K, 1M or 2GiB"
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and len(value) <= 64 and (match := _SIZE.fullmatch(value.strip())):
        whole, _, fraction = match[1].partition(".")
        scale = 10 ** len(fraction)
        number, rest = divmod(int(whole + fraction) * _SIZE_UNITS[match[2].lower()], scale)
        if rest:
            raise ValueError(expected + "; this is not a whole number of bytes")
    else:
        raise ValueError(expected)
    if not 0 <= number <= _LARGEST:
        raise ValueError(expected + ", not negative and below 2^63")
    return number


def format_size(value: int) -> str:
    """The shortest exact text that parse_size reads back."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % scale == 0:
            return f"{value // scale}{unit}"
    return str(value)


def parse_duration(value: object) -> float:
    """Seconds: a number, or text such as 500ms, 30s, 2min. 0 and `never` mean no deadline."""
    expected = "a duration such as 500ms, 30s or 2min (0: never)"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError(expected) from None
    elif isinstance(value, str) and value.strip().lower() == "never":
        seconds = 0.0
    elif isinstance(value, str) and len(value) <= 64 and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _DURATION_UNITS[match[2].lower()]
    else:
        raise ValueError(expected)
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST:
        raise ValueError(f"{expected}, at most {_LONGEST:.0f} s")
    return seconds


def format_duration(value: float) -> str:
    """Text that parse_duration reads back."""
    if value == 0:
        return "never"
    return f"{value:g}s" if float(f"{value:g}") == value else f"{value!r}s"


def parse_bool(value: object) -> bool:
    """A truth value: a bool, 0 or 1, or 1/0, true/false, yes/no, on/off as text."""
    if isinstance(value, bool):
        return value
    try:
        return _BOOLEANS[str(value).strip().lower()]
    except KeyError:
        raise ValueError("1 or 0 (also true/false, yes/no, on/off)") from None


def parse_text(value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("text that is not empty")
    return value.strip()


def parse_path(value: object) -> Path:
    """A path; a leading ~ is the home folder. Relative paths are relative to the current folder."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise ValueError("a path")
    try:
        return Path(os.path.abspath(os.path.expanduser(os.fspath(value))))
    except (OSError, TypeError) as error:
        raise ValueError(f"a path ({error})") from None


def parse_flags(value: object) -> tuple[str, ...]:
    """Command-line words: a list of text, or one text split as a shell would."""
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if not isinstance(value, str):
        raise ValueError("text or a list of text")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"words as in a shell ({error})") from None


def integer(least: int, most: int, *, power_of_two: bool = False) -> Parser:
    """A parser of whole numbers from `least` to `most`."""
    expected = f"a {'power of two' if power_of_two else 'whole number'} from {least} to {most}"

    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value.strip()):
            number = int(value)
        else:
            raise ValueError(expected)
        if not least <= number <= most or (power_of_two and number & (number - 1)):
            raise ValueError(expected)
        return number

    return parse


def size_between(least: int, most: int = _LARGEST) -> Parser:
    """A parser of sizes from `least` to `most` bytes."""

    def parse(value: object) -> int:
        number = parse_size(value)
        if not least <= number <= most:
            raise ValueError(f"a size from {format_size(least)} to {format_size(most)}")
        return number

    return parse


def choice(*names: str) -> Parser:
    """A parser of one of `names`, in any case."""

    def parse(value: object) -> str:
        name = value.strip().lower() if isinstance(value, str) else ""
        if name in names:
            return name
        near = difflib.get_close_matches(name, names, n=1)
        raise ValueError(f"one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else ""))

    return parse


def optional(parse: Parser, absent: str = "auto") -> Parser:
    """`parse`, where `absent` and None stand for None."""

    def parse_optional(value: object) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == absent):
            return None
        return parse(value)

    return parse_optional


def format_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0, 2-5, 9`: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)
