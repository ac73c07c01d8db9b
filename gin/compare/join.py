"""Joins the rows of results: what is compared differs in one field, or lies in different files; all else is equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gin.bench.load import ResultFile
from gin.bench.results import Row
from gin.compare.ratio import Ratio, ratio_of
from gin.errors import ResultsError

__all__ = [
    "FIELDS",
    "GEOMETRY",
    "Comparison",
    "Located",
    "Pair",
    "compare",
    "default_dimension",
    "file_names",
    "located",
]

GEOMETRY = ("ranks", "scope", "ctas", "threads", "contexts", "messages")
FIELDS = ("test", "op", "backend", "platform", "wire", "route", *GEOMETRY, "bytes")
_YOUNGER = ("contexts", "messages")  # fields that not every file has
_TAKE_TURNS = ("backend", "route")  # what a sweep measures in turns

Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Located:
    """A row and the name of its file."""

    row: Row
    file: str

    def __getitem__(self, name: str) -> Any:
        return self.file if name == "file" else self.row.get(name)


@dataclass(frozen=True)
class Pair:
    """Two rows that differ in the dimension only, and their ratio."""

    key: Key
    above: Located
    below: Located
    above_name: str
    below_name: str
    metric: str
    ratio: Ratio | None

    def __getitem__(self, name: str) -> Any:
        return dict(self.key).get(name)

    @property
    def wrong(self) -> bool:
        """Whether data of either row was wrong; there is no ratio then."""
        return bool(self.above.row["wrong"] or self.below.row["wrong"])


@dataclass
class Comparison:
    """The pairs, and what a reader has to know of them."""

    dimension: str
    base: str
    others: list[str]
    pairs: list[Pair]
    remarks: list[str] = field(default_factory=list)


def file_names(files: Sequence[ResultFile]) -> list[str]:
    """A short name for each file, no two alike."""
    names = [file.name for file in files]
    if len(set(names)) == len(names):
        return names
    paths = [file.path for file in files]
    if len(set(paths)) == len(paths):
        return paths
    raise ResultsError(f"{next(path for path in paths if paths.count(path) > 1)} is given twice")


def located(files: Sequence[ResultFile]) -> list[Located]:
    """All rows of all files."""
    return [Located(row, name) for name, file in zip(file_names(files), files, strict=True) for row in file.rows]


def default_dimension(rows: Sequence[Located]) -> str | None:
    """What is compared when nothing is said: files, else backends, else routes, else whatever single field differs."""
    for name in ("file", "backend", "route"):
        if len({row[name] for row in rows}) > 1:
            return name
    return None


def compare(
    rows: Sequence[Located],
    dimension: str,
    *,
    base: str | None = None,
    ignore: Sequence[str] = (),
    metric: str | None = None,
    metrics: dict[str, str] | None = None,
) -> Comparison:
    """Pairs each row with the one that has the base value of `dimension` and is equal otherwise.

    dimension  `file` or a field of FIELDS
    base       the value that the others are divided by; the first one by default
    ignore     fields that may differ
    metric     the field that is compared, or None for the one in `metrics` under the row's test, else median_us

    Raises ResultsError when nothing can be joined, or two rows are alike.
    """
    values = list(dict.fromkeys(str(row[dimension]) for row in rows))
    base = _base(values, base, dimension)
    others = [value for value in values if value != base]
    if not others:
        raise ResultsError(f"nothing to compare: every row has {dimension} {base}")
    fields, remarks = _joined_fields(rows, dimension, ignore)
    groups: dict[Key, dict[str, Located]] = {}
    for row in rows:
        key = tuple((name, row[name]) for name in fields)
        group = groups.setdefault(key, {})
        value = str(row[dimension])
        if value in group:
            raise ResultsError(_alike(key, dimension, value, ignore))
        group[value] = row
    pairs = []
    for key, group in groups.items():
        for other in others:
            if base in group and other in group:
                together = dimension in _TAKE_TURNS and not set(FIELDS) & set(ignore)
                pairs.append(_pair(key, group[other], group[base], other, base, together, metric, metrics or {}))
    if not pairs:
        raise ResultsError(_why_nothing(rows, fields, dimension, base))
    remarks += _alone(groups, base, others)
    return Comparison(dimension, base, others, pairs, remarks)


def _base(values: list[str], base: str | None, dimension: str) -> str:
    if base is None:
        if not values:
            raise ResultsError("nothing to compare: there are no rows")
        return values[0]
    if base not in values:
        raise ResultsError(f"no row has {dimension} {base}; there is {', '.join(values)}")
    return base


def _joined_fields(rows: Sequence[Located], dimension: str, ignore: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields that joined rows have in common, and what is to be said of the others."""
    fields, remarks = [], []
    for name in ("file", *FIELDS):
        if name == dimension or name in ignore:
            continue
        if name in _YOUNGER and any(row[name] is None for row in rows):
            if any(row[name] is not None for row in rows):
                remarks.append(f"not every row says its {name}: they are taken to be equal")
            continue
        fields.append(name)
    for name in ignore:
        differing = dict.fromkeys(str(row[name]) for row in rows)
        if name in FIELDS and len(differing) > 1:
            remarks.append(f"compared although {name} differs: {', '.join(differing)}")
    return fields, remarks


def _pair(
    key: Key,
    above: Located,
    below: Located,
    above_name: str,
    below_name: str,
    together: bool,
    metric: str | None,
    metrics: dict[str, str],
) -> Pair:
    """`together`: rows of one file took turns."""
    chosen = metric or metrics.get(above.row["test"], "median_us")
    ratio = None
    if not above.row["wrong"] and not below.row["wrong"]:
        ratio = ratio_of(above.row, below.row, chosen, interleaved=together and above.file == below.file)
    return Pair(key, above, below, above_name, below_name, chosen, ratio)


def describe(key: Key) -> str:
    """A key in words, without what is obvious."""
    return " ".join(f"{name}={value}" for name, value in key)


def _alike(key: Key, dimension: str, value: str, ignore: Sequence[str]) -> str:
    remedy = f"do not ignore {', '.join(ignore)}, or narrow it by --where" if ignore else "narrow it by --where"
    return f"two rows with {dimension} {value} are alike ({describe(key)}): {remedy}"


def _why_nothing(rows: Sequence[Located], fields: Sequence[str], dimension: str, base: str) -> str:
    """Which fields keep all rows apart, and what would join them."""
    here = [row for row in rows if str(row[dimension]) == base]
    there = [row for row in rows if str(row[dimension]) != base]
    apart = []
    for name in fields:
        mine, theirs = {row[name] for row in here}, {row[name] for row in there}
        if not mine & theirs:
            apart.append((name, _some(mine), _some(theirs)))
    if not apart:
        return f"no row of {dimension} {base} has a partner that is equal in {', '.join(fields)}"
    reasons = "; ".join(f"{name} is {mine} in {base} and {theirs} in the rest" for name, mine, theirs in apart)
    names = ",".join(name for name, _, _ in apart)
    return f"not comparable: {reasons}. To compare nevertheless: --ignore {names}"


def _some(values: set[Any]) -> str:
    ordered = sorted(values, key=lambda value: (str(type(value)), value))
    shown = ", ".join(map(str, ordered[:4]))
    return shown + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")


def _alone(groups: dict[Key, dict[str, Located]], base: str, others: Sequence[str]) -> list[str]:
    """What could not be joined, counted."""
    remarks = []
    for value in (base, *others):
        partners = others if value == base else [base]
        alone = [
            key for key, group in groups.items() if value in group and not any(other in group for other in partners)
        ]
        if alone:
            example = describe(tuple(item for item in alone[0] if item[0] not in ("platform", "wire", "file")))
            remarks.append(f"{len(alone)} rows of {value} have no partner, e.g. {example}")
    return remarks
