"""The grammar of thresholds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import row

from gin.compare.threshold import (
    Condition,
    Threshold,
    ThresholdError,
    parse_conditions,
    parse_threshold,
    parse_thresholds,
)


def test_everything_at_once() -> None:
    found = parse_threshold('latency.median_us: nccl_gin / nvshmem > 1.2 @ bytes<=1K, route=native, file != "a b"')
    assert found == Threshold(
        "latency",
        "median_us",
        "nccl_gin",
        "nvshmem",
        ">",
        1.2,
        (Condition("bytes", "<=", 1024.0), Condition("route", "=", "native"), Condition("file", "!=", "a b")),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median_us: new / base > 110%", Threshold(None, "median_us", "new", "base", ">", 1.1)),
        ("p99_us:nvshmem>=10", Threshold(None, "p99_us", "nvshmem", None, ">=", 10.0)),
        ("rate.rate_Mops: a-b/c.d <.5", Threshold("rate", "rate_Mops", "a-b", "c.d", "<", 0.5)),
        ('x.y: "2024 run"/base<=1e-3', Threshold("x", "y", "2024 run", "base", "<=", 0.001)),
    ],
)
def test_forms(text: str, expected: Threshold) -> None:
    assert parse_threshold(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a metric"),
        ("median_us", "expected ':', but it ends here"),
        ("median_us nvshmem > 1", "expected ':'"),
        ("latency.: a > 1", "is no metric"),
        (".median_us: a > 1", "expected a metric"),
        ("median_us: > 1", "expected a name to compare"),
        ("median_us: a / > 1", "expected a name to compare with"),
        ("median_us: a / a > 1", "with itself"),
        ("median_us: a / b / c > 1", "expected '>='"),
        ("median_us: a = 1", "expected '>='"),
        ("median_us: a > fast", "expected a number"),
        ("median_us: a > -1", "expected a number"),
        ("median_us: a > 1.2x", "expected a number"),
        ("median_us: a > 1e999", "expected a number"),
        ("median_us: a > 1.2 bytes<=8", "expected '@' or the end"),
        ("median_us: a > 1.2 @", "expected a field"),
        ("median_us: a > 1.2 @ bytes", "expected '<='"),
        ("median_us: a > 1.2 @ bytes<=", "expected a number, a size"),
        ("median_us: a > 1.2 @ bytes<=1KKK", "expected a number, a size"),
        ("median_us: a > 1.2 @ bytes<=8,", "expected a field"),
        ("median_us: a > 1.2 @ bytes<=8 route=native", "expected ',' or the end"),
        ('median_us: "a > 1.2', "expected a name"),
        ("median_us: \u00e4 > 1", "expected a name"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, message: str) -> None:
    with pytest.raises(ThresholdError) as caught:
        parse_threshold(text)
    assert message in str(caught.value)
    if "expected" in message:
        *_, shown, caret = str(caught.value).split("\n")
        assert shown == f"  {text}"
        assert caret.strip() == "^"
        assert 2 <= caret.index("^") <= len(text) + 2


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
anything = names | st.text(st.characters(codec="utf-8", exclude_characters='"\n\r'), min_size=1, max_size=8)
numbers = st.floats(0, 1e300, allow_nan=False)
conditions = st.builds(
    Condition,
    anything,
    st.sampled_from(["<", "<=", ">", ">=", "=", "!="]),
    numbers | st.integers(0, 1 << 50).map(float) | anything,
)
words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
thresholds = st.builds(
    Threshold,
    st.none() | words,
    words,
    anything,
    st.none() | anything,
    st.sampled_from(["<", "<=", ">", ">="]),
    numbers,
    st.lists(conditions, max_size=3).map(tuple),
).filter(lambda threshold: threshold.left != threshold.right)


@given(thresholds)
def test_what_is_shown_can_be_typed_again(threshold: Threshold) -> None:
    assert parse_threshold(str(threshold)) == threshold


@given(st.text(max_size=60) | st.text("abc.:/<>=!@,%\"' 0123456789KeE-", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_threshold(text)
    except ThresholdError:
        return
    assert parse_threshold(str(parsed)) == parsed


@given(thresholds, st.integers(0, 200), st.sampled_from('@:/,<>"'))
def test_one_sign_too_many_never_goes_unnoticed_as_something_else(threshold: Threshold, place: int, sign: str) -> None:
    text = str(threshold)
    place %= len(text) + 1
    try:
        parsed = parse_threshold(text[:place] + sign + text[place:])
    except ThresholdError:
        return
    assert parse_threshold(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("bytes<=8", True),
        ("bytes<8", False),
        ("bytes!=8", False),
        ("bytes=8", True),
        ("backend=nvshmem", True),
        ("backend!=nvshmem", False),
        ("backend=8", False),
        ("backend!=8", True),
        ("bytes=nvshmem", False),
        ("colour=red", False),
        ("colour!=red", True),
        ("bytes>1, route=native", True),
        ("bytes>1, route=direct", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert all(condition.holds(row()) for condition in parse_conditions(text)) is holds


def test_a_file_of_thresholds_names_the_line() -> None:
    text = "# CI\n\nlatency.median_us: new / base > 1.1  # ten per cent\nrate_Mops: a <"
    with pytest.raises(ThresholdError, match=r"line 4: expected a number"):
        parse_thresholds(text.split("\n"))
    assert len(parse_thresholds(text.split("\n")[:3])) == 1


@pytest.mark.parametrize(("relation", "crossed"), [(">", False), (">=", True), ("<", False), ("<=", True)])
def test_a_bound_itself(relation: str, crossed: bool) -> None:
    assert parse_threshold(f"median_us: a {relation} 1.5").crossed(1.5) is crossed
