"""Thresholds of `gin compare --fail-if`: their grammar and parser.

    threshold  = [ TEST "." ] METRIC ":" operand [ "/" operand ] relation number [ "@" conditions ]
    conditions = condition { "," condition }
    condition  = FIELD comparison value
    operand    = NAME | "new" | "base"
    relation   = ">" | ">=" | "<" | "<="
    comparison = relation | "=" | "!="
    number     = decimal [ "%" ]
    value      = decimal [ "K" | "M" | "G" ] | NAME

A NAME of other characters than letters, digits, `_`, `-` and `.` is written in double quotes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gin.bench.results import Row
from gin.config import parse_size
from gin.errors import ResultsError

__all__ = ["Condition", "Threshold", "ThresholdError", "parse_conditions", "parse_threshold", "parse_thresholds"]

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISONS = {**_RELATIONS, "!=": operator.ne, "=": operator.eq, "==": operator.eq}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.-]))
  | (?P<word>[A-Za-z0-9_][\w.-]*)
  | "(?P<quoted>[^"\n]*)"
  | (?P<sign>>=|<=|==|!=|[><=:/@,%])
  )""",
    re.VERBOSE | re.ASCII,
)
_REMARK = re.compile(r"""^((?:[^"#\n]|"[^"\n]*")*)#.*""", re.DOTALL)
_BARE = re.compile(r"(?!\d)[\w][\w.-]*", re.ASCII)


class ThresholdError(ResultsError):
    """A threshold that does not follow the grammar. The message shows where."""


@dataclass(frozen=True)
class Condition:
    """A row's field compared with a value."""

    field: str
    comparison: str
    value: float | str

    def fits(self, have: Any) -> bool:
        """Whether a field's value is of the kind that it is compared with: text, or a number."""
        return isinstance(_plain(have), str if isinstance(self.value, str) else (int, float))

    def holds(self, row: Row) -> bool:
        """Whether the row fulfils it. A field that the row lacks, or of another kind, fulfils only `!=`."""
        have = row.get(self.field)
        if not self.fits(have):
            return self.comparison == "!="
        return bool(_COMPARISONS[self.comparison](_plain(have), self.value))

    def __str__(self) -> str:
        return f"{_spell(self.field)}{self.comparison}{_spell(self.value)}"


@dataclass(frozen=True)
class Threshold:
    """A bound on a metric of one operand, or on the ratio of two."""

    test: str | None
    metric: str
    left: str
    right: str | None
    relation: str
    bound: float
    conditions: tuple[Condition, ...] = ()

    def crossed(self, value: float) -> bool:
        """Whether a value is on the wrong side."""
        return _RELATIONS[self.relation](value, self.bound)

    def crossed_by_all(self, low: float, high: float) -> bool:
        """Whether a whole interval is on the wrong side."""
        return self.crossed(low) and self.crossed(high)

    def concerns(self, row: Row) -> bool:
        """Whether the row is of its test and fulfils its conditions."""
        return self.test in (None, row["test"]) and all(condition.holds(row) for condition in self.conditions)

    def __str__(self) -> str:
        what = self.metric if self.test is None else f"{_spell(self.test)}.{self.metric}"
        ratio = _spell(self.left) if self.right is None else f"{_spell(self.left)} / {_spell(self.right)}"
        where = f" @ {', '.join(map(str, self.conditions))}" if self.conditions else ""
        return f"{what}: {ratio} {self.relation} {self.bound!r}{where}"


def _plain(value: Any) -> Any:
    """true and false are names."""
    return str(value).lower() if isinstance(value, bool) else value


def _spell(value: float | str) -> str:
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) else f'"{value}"'
    return f"{int(value)}" if float(value).is_integer() and abs(value) < 1e15 else repr(value)


class _Reader:
    """The tokens of one threshold, taken from the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    def fail(self, expected: str) -> ThresholdError:
        rest = self.text[self.place :].strip()
        got = f"not {rest.split()[0]!r:.30}" if rest else "but it ends here"
        place = len(self.text) - len(self.text[self.place :].lstrip()) if rest else len(self.text)
        return ThresholdError(f"expected {expected}, {got}:\n  {self.text}\n  {' ' * place}^")

    def _next(self) -> re.Match[str] | None:
        return _TOKEN.match(self.text, self.place)

    def at_end(self) -> bool:
        return not self.text[self.place :].strip()

    def sign(self, *signs: str) -> str | None:
        """The next token if it is one of `signs`."""
        match = self._next()
        if match is None or match["sign"] not in signs:
            return None
        self.place = match.end()
        return match["sign"]

    def need_sign(self, *signs: str) -> str:
        found = self.sign(*signs)
        if found is None:
            raise self.fail(" or ".join(f"'{sign}'" for sign in signs))
        return found

    def name(self, what: str) -> str:
        match = self._next()
        if match is not None and match["quoted"]:
            self.place = match.end()
            return match["quoted"]
        if match is not None and match["word"] and _BARE.fullmatch(match["word"]):
            self.place = match.end()
            return match["word"]
        raise self.fail(what)

    def number(self) -> float:
        match = self._next()
        if match is None or not match["number"]:
            raise self.fail("a number")
        value = float(match["number"])
        if value == float("inf"):
            raise self.fail("a number of reasonable size")
        self.place = match.end()
        return value / 100 if self.sign("%") else value

    def value(self) -> float | str:
        match = self._next()
        if match is not None and match["number"]:
            return self.number()
        if match is not None and match["word"] and match["word"][0].isdigit():
            try:
                size = float(parse_size(match["word"]))
            except ValueError:
                raise self.fail("a number, a size such as 1K, or a name") from None
            self.place = match.end()
            return size
        return self.name("a number, a size such as 1K, or a name")


def parse_threshold(text: str) -> Threshold:
    """The threshold that `text` says, e.g. `latency.median_us: nccl_gin / nvshmem > 1.2 @ bytes<=1K`.

    Raises ThresholdError.
    """
    reader = _Reader(text)
    what = reader.name("a metric such as latency.median_us")
    test, dot, metric = what.rpartition(".")
    if not metric or (dot and not test):
        raise ThresholdError(f"{what!r} is no metric; write TEST.METRIC, as in latency.median_us:\n  {text}")
    reader.need_sign(":")
    left = reader.name("a name to compare, or new")
    right = reader.name("a name to compare with, or base") if reader.sign("/") else None
    if left == right:
        raise ThresholdError(f"{left} is compared with itself:\n  {text}")
    relation = reader.need_sign(">=", "<=", ">", "<")
    bound = reader.number()
    conditions = _conditions(reader) if reader.sign("@") else ()
    if not reader.at_end():
        raise reader.fail("',' or the end" if conditions else "'@' or the end")
    return Threshold(test or None, metric, left, right, relation, bound, conditions)


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Conditions on rows, e.g. `bytes<=1K, backend=nvshmem`. Raises ThresholdError."""
    reader = _Reader(text)
    conditions = _conditions(reader)
    if not reader.at_end():
        raise reader.fail("',' or the end")
    return conditions


def _conditions(reader: _Reader) -> tuple[Condition, ...]:
    found = []
    while True:
        name = reader.name("a field of the rows, such as bytes")
        comparison = reader.need_sign("<=", ">=", "!=", "==", "=", "<", ">")
        found.append(Condition(name, "=" if comparison == "==" else comparison, reader.value()))
        if not reader.sign(","):
            return tuple(found)


def parse_thresholds(lines: Iterable[str]) -> list[Threshold]:
    """The thresholds of a file: one on a line; what follows `#` is a remark. Raises ThresholdError with the line."""
    found = []
    for number, line in enumerate(lines, 1):
        text = _REMARK.sub(r"\1", line).strip()
        if text:
            try:
                found.append(parse_threshold(text))
            except ThresholdError as error:
                raise ThresholdError(f"line {number}: {error}") from None
    return found
