"""Percentiles, sizes, and how a plan turns a size into messages and iterations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gin.bench.plan import SCOPES, TESTS, Plan, format_size, kernel_source, sizes_between
from gin.bench.stats import nearest_rank, summarize
from gin.config import parse_size


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(5, 15), (30, 20), (40, 20), (50, 35), (100, 50)],
)
def test_nearest_rank_known_vector(percent: float, expected: float) -> None:
    assert nearest_rank([15, 20, 35, 40, 50], percent) == expected


def test_nearest_rank_counts_exact_products_exactly() -> None:
    ordered = list(range(1, 101))
    assert [nearest_rank(ordered, p) for p in (1, 7, 29, 57, 58, 90, 99)] == [1, 7, 29, 57, 58, 90, 99]
    assert nearest_rank(list(range(1, 31)), 10) == 3


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_nearest_rank_refuses_percentiles_that_do_not_exist(percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        nearest_rank([1.0], percent)


@pytest.mark.parametrize("call", [lambda: nearest_rank([], 50), lambda: summarize([])])
def test_nothing_has_no_statistics(call: object) -> None:
    with pytest.raises(ValueError, match="no samples"):
        call()  # type: ignore[operator]


def test_summary_keeps_the_largest_samples() -> None:
    summary = summarize([1.0] * 98 + [5.0, 900.0])
    assert (summary.count, summary.min, summary.median, summary.p90) == (100, 1.0, 1.0, 1.0)
    assert (summary.p99, summary.max) == (5.0, 900.0)


samples = st.lists(st.floats(min_value=0, max_value=1e12, allow_nan=False), min_size=1, max_size=300)


@given(samples, st.floats(min_value=0.01, max_value=100))
def test_nearest_rank_is_a_sample_with_enough_below_it(values: list[float], percent: float) -> None:
    ordered = sorted(values)
    value = nearest_rank(ordered, percent)
    assert value in ordered
    assert sum(v <= value for v in ordered) >= percent / 100 * len(ordered) - 1e-6
    assert sum(v < value for v in ordered) < percent / 100 * len(ordered) + 1e-6


@given(samples)
def test_summary_is_ordered_and_blind_to_order_and_shape(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.min <= summary.median <= summary.p90 <= summary.p99 <= summary.max
    assert summary == summarize(np.array(values[::-1]).reshape(1, -1))


@given(st.integers(min_value=0, max_value=1 << 50))
def test_sizes_shown_can_be_typed_again(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == nbytes


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0"), (8, "8"), (1024, "1K"), (1536, "1536"), (3 << 20, "3M")])
def test_format_size(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


def test_sizes_between() -> None:
    assert sizes_between(8, 64, 2) == [8, 16, 32, 64]
    assert sizes_between(0, 4, 2) == [0, 1, 2, 4]
    assert sizes_between(0, 0, 2) == [0]
    assert sizes_between(3, 3, 2) == [3]
    assert sizes_between(8, 63, 2) == [8, 16, 32]
    assert sizes_between(1, 4, 1.1) == [1, 2, 3, 4]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.floats(1.01, 1e6))
def test_sizes_grow_and_stay_inside(minimum: int, maximum: int, factor: float) -> None:
    if minimum > maximum:
        minimum, maximum = maximum, minimum
    sizes = sizes_between(minimum, maximum, factor)
    assert sizes[0] == minimum
    assert all(a < b for a, b in itertools.pairwise(sizes))
    assert sizes[-1] <= maximum


@pytest.mark.parametrize(("minimum", "maximum", "factor"), [(9, 8, 2), (8, 64, 1), (8, 64, 0), (8, 64, -2)])
def test_sizes_that_never_end_are_refused(minimum: int, maximum: int, factor: float) -> None:
    with pytest.raises(ValueError, match=r"above|never"):
        sizes_between(minimum, maximum, factor)


def make_plan(**fields: object) -> Plan:
    base: dict[str, object] = {
        "test": "latency",
        "backends": ("nvshmem",),
        "required": True,
        "routes": ("native",),
        "sizes": (8,),
    }
    return Plan(**{**base, **fields})  # type: ignore[arg-type]


@given(st.integers(1, 100_000), st.integers(1, 9))
def test_a_rows_iterations_are_split_without_loss(iterations: int, rounds: int) -> None:
    parts = make_plan(rounds=rounds).split(iterations)
    assert sum(parts) == iterations
    assert len(parts) <= rounds
    assert min(parts) >= 1
    assert max(parts) - min(parts) <= 1


@given(st.integers(0, 1 << 34), st.floats(0, 1e3))
def test_iterations_are_bounded_by_time_and_never_few(nbytes: int, seconds: float) -> None:
    plan = make_plan()
    iterations = plan.fitted_iterations(nbytes, seconds)
    assert 20 <= iterations <= plan.first_iterations(nbytes) + plan.rounds
    if iterations > 21:
        assert iterations * seconds <= plan.seconds + plan.rounds * seconds


def test_iterations_that_were_asked_for_are_run() -> None:
    plan = make_plan(iterations=7, warmup=0)
    assert (plan.fitted_iterations(8, 100.0), plan.warmups(8)) == (7, 0)


@pytest.mark.parametrize("test", list(TESTS))
def test_messages_fit_their_bound(test: str) -> None:
    definition = TESTS[test]
    for nbytes in (0, 1, 8, 4096, 1 << 20, 1 << 30):
        messages = definition.messages(nbytes)
        assert 1 <= messages <= definition.max_messages
        assert messages == 1 or messages * nbytes <= definition.max_flight


@pytest.mark.parametrize("test", list(TESTS))
@pytest.mark.parametrize("scope", SCOPES)
def test_every_test_has_a_kernel_of_its_name(test: str, scope: str) -> None:
    source = kernel_source(test, scope)
    assert source.startswith(f"#define BENCH_SCOPE {SCOPES.index(scope)}\n")
    assert f" {test}(gin::Comm comm" in source
