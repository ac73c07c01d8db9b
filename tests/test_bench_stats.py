"""Percentiles, sizes, and how a plan turns a size into messages and iterations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gin.bench.plan import KERNELS, SCOPES, TESTS, Plan, format_size, kernel_source, sizes_between
from gin.bench.stats import median_interval, nearest_rank, outliers, student_95, summarize, trend
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


def test_a_huge_factor_gives_one_size() -> None:
    assert sizes_between(2, 1024, 1e308) == [2]
    assert sizes_between(0, 1 << 60, 1e308) == [0, 1]


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
    parts = plan.split(iterations)
    assert max(parts) <= plan.longest_launch(nbytes)
    assert len(parts) >= 10
    assert len(parts) == 10 or min(parts) >= 19
    if iterations > 21:
        assert iterations * seconds <= plan.seconds + plan.rounds * seconds


def test_iterations_that_were_asked_for_are_run() -> None:
    plan = make_plan(iterations=7, warmup=0)
    assert (plan.fitted_iterations(8, 100.0), plan.warmups(8)) == (7, 0)


OPERATIONS = [made for test in TESTS.values() for made in test.operations]


@pytest.mark.parametrize("made", OPERATIONS, ids=lambda made: f"{made.test}-{made.name}")
def test_messages_fit_their_bound(made: object) -> None:
    for nbytes in (0, 1, 8, 4096, 1 << 20, 1 << 30):
        messages = made.messages(nbytes)  # type: ignore[attr-defined]
        assert 1 <= messages <= made.max_messages  # type: ignore[attr-defined]
        assert messages == 1 or messages * nbytes <= made.max_flight  # type: ignore[attr-defined]


@pytest.mark.parametrize("test", list(TESTS))
@pytest.mark.parametrize("scope", SCOPES)
def test_every_operation_has_a_kernel_of_its_name(test: str, scope: str) -> None:
    names = tuple(made.name for made in TESTS[test].operations)
    for shape in make_plan(test=test, operations=names, scopes=(scope,)).shapes():
        source = kernel_source(shape)
        assert source.startswith(f"#define BENCH_SCOPE {SCOPES.index(scope)}\n")
        assert f"#define BENCH_KERNEL {test}_{shape.operation.name}\n" in source
        assert "BENCH_KERNEL(gin::Comm comm" in source


def test_every_kernel_is_of_an_operation() -> None:
    assert {path.stem for path in KERNELS.glob("*.cu")} == {made.kernel for made in OPERATIONS} | {"clock"}


def test_shapes_are_all_combinations() -> None:
    plan = make_plan(
        operations=("put_signal", "atomic"), scopes=("thread", "warp"), ctas=(1, 2), contexts=(1, 4), sizes=(8, 16)
    )
    shapes = list(plan.shapes())
    assert len(shapes) == len(set(shapes)) == 2 * 2 * 2 * 2
    assert {(shape.scope, shape.threads) for shape in shapes} == {("thread", 1), ("warp", 32)}
    assert len(list(plan.points())) == 8 * 2 + 8 * 1  # atomics have one size
    assert [shape.threads for shape in make_plan(threads=(32, 64)).shapes()] == [32, 64]


def test_too_many_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        sizes_between(1, 1 << 40, 1.0000001)


# -- how sure


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (9, 2.262), (30, 2.042), (40, 2.021), (120, 1.980)])
def test_student(degrees: int, value: float) -> None:
    assert student_95(degrees) == pytest.approx(value, abs=0.002)


def test_student_of_nothing() -> None:
    with pytest.raises(ValueError, match="degrees"):
        student_95(0)


turns = st.lists(st.lists(st.floats(0, 1e9), min_size=1, max_size=40), min_size=1, max_size=12)


@given(turns)
def test_the_interval_holds_the_median_and_is_of_samples(values: list[list[float]]) -> None:
    interval = median_interval(values)
    samples = sorted(sample for turn in values for sample in turn)
    assert (interval is None) == (len(samples) < 6)
    low, high = interval or (samples[0], samples[-1])
    assert low in samples and high in samples
    assert low <= nearest_rank(samples, 50) <= high


def test_no_interval_of_nothing() -> None:
    for empty in ([], [[]], [[], []]):
        with pytest.raises(ValueError, match="no samples"):
            median_interval(empty)


def coverage(between: float, *, turns: int = 10, each: int = 30, runs: int = 400) -> float:
    """How often the interval holds the true median when turns differ by `between` and samples by 1."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(runs):
        levels = 100 + between * rng.standard_normal((turns, 1))
        interval = median_interval(list(levels + rng.standard_normal((turns, each))))
        held += interval is not None and interval[0] <= 100 <= interval[1]
    return held / runs


def test_the_interval_keeps_its_promise_also_when_turns_differ() -> None:
    assert coverage(0.0) >= 0.93
    assert coverage(1.0) >= 0.90
    assert coverage(10.0) >= 0.90
    assert coverage(0.0, turns=2, each=100) >= 0.93
    assert coverage(0.0, turns=1, each=6) >= 0.93
    assert coverage(0.5, turns=3, each=100) >= 0.93
    assert coverage(0.5, turns=2, each=100) >= 0.90


def test_ever_more_samples_narrow_the_interval() -> None:
    rng = np.random.default_rng(3)
    widths = []
    for each in (10, 1000):
        interval = median_interval(list(rng.standard_normal((10, each))))
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[1] < widths[0] / 4


def test_outliers_are_counted() -> None:
    assert outliers([1.0] * 50 + [1.1] * 50) == 0
    assert outliers([1.0] * 50 + [1.1] * 50 + [9.0, 0.1]) == 2
    assert outliers([1.0] * 100 + [1.01]) == 1
    assert outliers([1.0] * 100 + [1.01], quantum=0.01) == 0
    assert outliers([5.0]) == 0


def test_trend() -> None:
    up = trend([1.0, 1.02, 1.05, 1.1, 1.12, 1.2, 1.25, 1.3, 1.33, 1.4])
    assert up.certain
    assert up.drift == pytest.approx(1.33 / 1.02 - 1)
    assert trend([1.0, 0.9, 0.8, 0.7, 0.6, 0.5]).drift < 0
    assert not trend([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98]).certain
    assert not trend([1.0] * 10).certain
    for little in ([], [1.0], [1.0, 2.0, 3.0], [0.0] * 9):
        assert trend(little).drift == 0.0
