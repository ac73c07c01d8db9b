"""Result files that are read back, and those that are none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import document, row

import gin
from gin.bench.load import load, parse
from gin.bench.results import to_json

RESULTS = Path(__file__).parent.parent.parent / "results"


def refused(data: bytes | dict[str, Any]) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(gin.ResultsError) as caught:
        parse(text, "some.json")
    assert str(caught.value).startswith("some.json: ")
    return str(caught.value)


def test_what_is_written_is_read_back() -> None:
    made = document(row(), row(bytes=16), complete=False)
    file = parse(to_json(made).encode(), "a/b.json")
    assert list(file.rows) == made["rows"]
    assert (file.name, file.emulated, file.complete, file.command[0]) == ("b", True, False, "gin")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*latency*.json")), ids=lambda path: path.name)
def test_results_of_the_repository_are_read(path: Path) -> None:
    assert load(str(path)).rows


def test_a_file_of_before_the_mark_of_completeness_is_complete() -> None:
    made = document(row())
    del made["complete"]
    assert parse(json.dumps(made).encode(), "x").complete


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_empty(data: bytes) -> None:
    assert "is empty" in refused(data)


def test_cut_short_says_where() -> None:
    text = to_json(document(row(), row(bytes=16)))
    assert "damaged" in refused(text[:-20].encode())
    assert "line" in refused(text[: len(text) // 2].encode())


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"bytes,median_us\n8,1\n", b"{'schema': 1}", b'{"schema": NaN}'])
def test_no_json(data: bytes) -> None:
    refused(data)


def test_deep_nesting_is_refused() -> None:
    refused(b"[" * 100_000)


@pytest.mark.parametrize("data", [[], 3, {}, {"rows": []}, {"results": [1]}])
def test_foreign(data: Any) -> None:
    assert "something else" in refused(data)


@pytest.mark.parametrize("schema", [0, 2, "1", None, True, 1.5])
def test_other_schema(schema: Any) -> None:
    message = refused(document(row(), schema=schema))
    assert "this gin reads schema 1" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("rows", {}), ("rows", None), ("emulated", 1), ("tool", 3), ("environment", []), ("command", "x")],
)
def test_damaged_head(field: str, value: Any) -> None:
    assert f"'{field}'" in refused(document(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("test", 1),
        ("backend", ""),
        ("ranks", 0),
        ("ctas", 1.0),
        ("threads", True),
        ("bytes", -1),
        ("iterations", "5"),
        ("median_us", None),
        ("median_us", -1.0),
        ("p99_us", 1e999),
        ("max_us", 0.1),
        ("bandwidth_GBps", "fast"),
        ("wrong", -1),
        ("wrong", 0.5),
        ("samples_us", [1, None]),
        ("turns_us", 3),
        ("median_low_us", "low"),
        ("contexts", 0),
        ("bytes", 10**400),
        ("max_us", 10**400),
        ("backend", "\x1b[31mred"),
        ("op", "two\nlines"),
        ("route", "\ud800"),
        ("messages", []),
        ("samples", "many"),
        ("stdev_us", "<b>"),
        ("drift", "up"),
        ("steady", {}),
        ("drifted", 1),
        ("of_a_later_version", 1e999),
        ("of_a_later_version", {"inside": [1e999]}),
    ],
)
def test_damaged_row(field: str, value: Any) -> None:
    message = refused(document(row(), {**row(), field: value}))
    assert "row 1" in message or "no result file" in message


@pytest.mark.parametrize("field", ["environment", "remarks"])
def test_what_could_not_be_written_again_is_refused(field: str) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert "too large" in refused(json.dumps(document(row(), **{field: {"x": [1.5]}})).replace("1.5", "1e999").encode())
    assert "without end" in refused(document(row(), **{field: {"x": deep}}))


def test_what_could_steer_a_terminal_is_spelled_out() -> None:
    made = document(row(), tool="\x1b]0;title\x07", environment={"\x1b[1m": ["\ud800", "a\nb"]})
    file = parse(json.dumps(made).encode(), "x")
    assert file.tool == r"\x1b]0;title\x07"
    assert file.environment == {r"\x1b[1m": [r"\ud800", r"a\nb"]}


def test_a_mark_of_the_byte_order_is_no_damage() -> None:
    assert parse(b"\xef\xbb\xbf" + json.dumps(document(row())).encode(), "x").rows


@pytest.mark.parametrize("field", list(row()))
def test_field_that_is_missing(field: str) -> None:
    made = row()
    del made[field]
    assert f"row 0: has no '{field}'" in refused(document(made))


@pytest.mark.parametrize("made", [[], 1, None])
def test_row_that_is_none(made: Any) -> None:
    assert "row 0" in refused(document(made))


def test_values_that_were_not_measured_and_fields_of_later_versions_are_taken() -> None:
    made = row(wrong=None, bandwidth_GBps=None, rate_Mops=None, colour="red")
    assert parse(json.dumps(document(made, mood="good")).encode(), "x").rows[0] == made


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_unreadable(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gin.ResultsError, match="cannot be read"):
        load(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*row(), "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    refused(data)


@given(json_values, st.sampled_from(list(row())), json_values)
def test_any_value_anywhere_is_read_or_refused_by_name(whole: Any, field: str, value: Any) -> None:
    for data in (whole, document({**row(), field: value}), document(whole)):
        with contextlib.suppress(gin.ResultsError):  # and nothing else is raised
            parse(json.dumps(data).encode(), "some.json")
