"""Which rows are compared with which, the ratios and their intervals, and thresholds held against them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import results, row

import gin
from gin.bench.load import ResultFile
from gin.compare.fit import require_fit, warnings, wrong_data
from gin.compare.join import Comparison, compare, default_dimension, file_names, located
from gin.compare.judge import Verdict, judge
from gin.compare.ratio import Ratio, estimate, ratio_of
from gin.compare.text import bounds, markdown, plain, summaries
from gin.compare.threshold import parse_threshold


def sweep(name: str = "base", factor: float = 1.0, **fields: Any) -> ResultFile:
    """Two backends, two routes, two sizes."""
    rows = [
        row(factor * us * (1 + (route == "native")), backend=backend, route=route, bytes=nbytes, **fields)
        for nbytes in (8, 4096)
        for backend, us in (("nvshmem", 1.0), ("nccl_gin", 1.5))
        for route in ("native", "direct")
    ]
    return results(*rows, name=name)


def joined(*files: ResultFile, by: str | None = None, **options: Any) -> Comparison:
    rows = located(files)
    return compare(rows, by or default_dimension(rows) or "backend", **options)


def ratios(comparison: Comparison) -> list[float | None]:
    return [pair.ratio and round(pair.ratio.value, 6) for pair in comparison.pairs]


def test_backends_of_one_file() -> None:
    found = joined(sweep())
    assert (found.dimension, found.base, found.others) == ("backend", "nvshmem", ["nccl_gin"])
    assert ratios(found) == [1.5] * 4
    assert {(pair["route"], pair["bytes"]) for pair in found.pairs} == {
        (route, nbytes) for route in ("native", "direct") for nbytes in (8, 4096)
    }


def test_another_base_turns_the_ratio_round() -> None:
    assert ratios(joined(sweep(), base="nccl_gin")) == [pytest.approx(1 / 1.5, abs=1e-6)] * 4


def test_files_are_compared_first() -> None:
    found = joined(sweep(), sweep("new", 2.0), sweep("newer", 3.0))
    assert (found.dimension, found.base, found.others) == ("file", "base", ["new", "newer"])
    assert sorted(ratios(found)) == [2.0] * 8 + [3.0] * 8


def test_routes_of_two_files_stay_in_their_file() -> None:
    found = joined(sweep(), sweep("new", 2.0), by="route")
    assert ratios(found) == [0.5] * 8
    assert {pair["file"] for pair in found.pairs} == {"base", "new"}


def test_rows_without_partner_are_counted() -> None:
    few = results(*sweep().rows[:3], name="few")
    found = joined(sweep(), few)
    assert len(found.pairs) == 3
    assert any(remark.startswith("5 rows of base have no partner") for remark in found.remarks)


def test_nothing_in_common_says_which_fields_keep_them_apart() -> None:
    with pytest.raises(gin.ResultsError) as caught:
        joined(sweep(), sweep("new", scope="block", threads=64))
    assert "scope is thread in base and block in the rest; threads is 1 in base and 64" in str(caught.value)
    assert "--ignore scope,threads" in str(caught.value)
    found = joined(sweep(), sweep("new", scope="block", threads=64), ignore=("scope", "threads"))
    assert len(found.pairs) == 8
    assert "compared although scope differs: thread, block" in found.remarks


def test_the_same_backend_of_other_tests_does_not_mix() -> None:
    other = results(*(row(9.0, test="rate", backend=b) for b in ("nvshmem", "nccl_gin")), *sweep().rows)
    assert sorted(ratios(joined(other, metric="median_us"))) == [1.0, 1.5, 1.5, 1.5, 1.5]


@pytest.mark.parametrize("ignore", [(), ("bytes",)])
def test_rows_that_are_alike_are_refused(ignore: tuple[str, ...]) -> None:
    rows = sweep().rows if ignore else (*sweep().rows, sweep().rows[0])
    with pytest.raises(gin.ResultsError, match="two rows with backend nvshmem are alike"):
        joined(results(*rows), ignore=ignore)


def test_fields_that_older_files_lack_are_taken_to_be_equal() -> None:
    found = joined(sweep(), sweep("new", contexts=4))
    assert len(found.pairs) == 8
    assert "not every row says its contexts: they are taken to be equal" in found.remarks
    with pytest.raises(gin.ResultsError, match="contexts is 1 in base and 4 in the rest"):
        joined(sweep(contexts=1), sweep("new", contexts=4))


@pytest.mark.parametrize(
    ("files", "message"),
    [((results(row()),), "every row has backend nvshmem"), ((results(),), "there are no rows")],
)
def test_nothing_to_compare(files: tuple[ResultFile, ...], message: str) -> None:
    with pytest.raises(gin.ResultsError, match=message):
        joined(*files)


def test_unknown_base() -> None:
    with pytest.raises(gin.ResultsError, match="no row has backend mpi; there is nvshmem, nccl_gin"):
        joined(sweep(), base="mpi")


def test_names_of_files() -> None:
    one, two = results(row(), name="a/out"), results(row(), name="b/out")
    assert file_names([one, two]) == ["a/out.json", "b/out.json"]
    assert file_names([one, results(row(), name="c/other")]) == ["out", "other"]
    with pytest.raises(gin.ResultsError, match="twice"):
        file_names([one, one])


def test_wrong_data_has_no_ratio() -> None:
    rows = [row(backend="nvshmem"), row(2.0, backend="nccl_gin", wrong=7)]
    found = joined(results(*rows))
    assert ratios(found) == [None]
    text = plain(found, 100)
    assert "2.000!" in text
    assert "wrong data" in text


# -- files that do not fit


def test_emulated_is_not_compared_with_hardware_unless_told() -> None:
    files = sweep(), results(*(({**r, "platform": "cuda", "wire": "cuda"}) for r in sweep().rows), emulated=False)
    with pytest.raises(gin.ResultsError, match=r"base is emulated.*--ignore emulated,platform,wire"):
        require_fit(files, ["base", "new"], ())
    require_fit(files, ["base", "new"], ("emulated",))
    assert any("EMULATION COMPARED WITH HARDWARE: base" in line for line in warnings(files, ["base", "new"]))


def test_what_weakens_a_comparison_is_said() -> None:
    env = {"gin": "0.1.0", "cpu": "Another", "cores": 16, "variables": {"GIN_TIMEOUT": "5s"}}
    bad = results(row(wrong=3), row(bytes=16, wrong=None), name="new", environment=env, complete=False)
    text = "\n".join(warnings([sweep(), bad], ["base", "new"]))
    for part in (
        "EMULATION: times of neither",
        "new is not complete",
        "not verified in new",
        "cpu Sixteen Cores / Another",
        "GIN_TIMEOUT=unset / 5s",
    ):
        assert part in text
    (told,), fails = wrong_data(located([sweep(), bad]), None)
    assert "3 elements in 1 row, marked" in told and fails


# -- ratios


def test_interval_of_independent_measurements() -> None:
    above = row(2.0, median_low_us=1.9, median_high_us=2.2)
    below = row(1.0, median_low_us=0.9, median_high_us=1.1)
    ratio = ratio_of(above, below, "median_us", interleaved=False)
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert ratio.value == 2.0
    assert math.log(2 / ratio.low) == pytest.approx(math.hypot(math.log(2 / 1.9), math.log(1.1)))
    assert math.log(ratio.high / 2) == pytest.approx(math.hypot(math.log(1.1), math.log(1 / 0.9)))
    assert ratio.verdict("median_us") == "slower"


def test_turns_cancel_what_hit_both_alike() -> None:
    drift = np.linspace(1, 3, 8)
    above = row(4.0, turns_us=list(2 * drift), median_low_us=2.0, median_high_us=6.0)
    below = row(2.0, turns_us=list(drift), median_low_us=1.0, median_high_us=3.0)
    alone = ratio_of(above, below, "median_us", interleaved=False)
    paired = ratio_of(above, below, "median_us", interleaved=True)
    assert alone is not None and alone.low is not None and alone.low < 1
    assert paired is not None
    assert paired.low == pytest.approx(2.0) == paired.high


@pytest.mark.parametrize("turns", [[1.0], [1.0, 2.0, 3.0], [0.0] * 8, []])
def test_turns_that_say_nothing_are_not_used(turns: list[float]) -> None:
    ratio = ratio_of(row(turns_us=turns), row(turns_us=turns), "median_us", interleaved=True)
    assert ratio == Ratio(1.0)


def test_bandwidth_has_the_interval_of_the_time() -> None:
    found = estimate(row(2.0, bytes=4000, median_low_us=1.0, median_high_us=4.0), "bandwidth_GBps")
    assert found is not None
    assert (found.low, found.value, found.high) == (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("ratio", "metric", "verdict"),
    [
        (Ratio(1.2, 1.1, 1.3), "median_us", "slower"),
        (Ratio(1.2, 1.1, 1.3), "bandwidth_GBps", "faster"),
        (Ratio(0.8, 0.7, 0.9), "median_us", "faster"),
        (Ratio(0.8, 0.7, 0.9), "rate_Mops", "slower"),
        (Ratio(1.2, 1.0, 1.3), "median_us", "same"),
        (Ratio(1.2), "median_us", ""),
    ],
)
def test_verdict(ratio: Ratio, metric: str, verdict: str) -> None:
    assert ratio.verdict(metric) == verdict


@pytest.mark.parametrize(("above", "below"), [(row(), row(rate_Mops=0)), (row(rate_Mops=None), row())])
def test_nothing_is_divided_by_nothing(above: dict[str, Any], below: dict[str, Any]) -> None:
    assert ratio_of(above, below, "rate_Mops", interleaved=False) is None


times = st.floats(0.001, 1e6)
rows = st.builds(
    lambda mid, low, high: row(mid, median_low_us=mid * low, median_high_us=mid * high),
    times,
    st.floats(0.1, 1),
    st.floats(1, 10),
)


@given(rows, rows, st.sampled_from(["median_us", "bandwidth_GBps", "rate_Mops"]))
def test_a_ratio_lies_in_its_interval_and_turns_round(one: dict[str, Any], other: dict[str, Any], metric: str) -> None:
    ratio = ratio_of(one, other, metric, interleaved=False)
    back = ratio_of(other, one, metric, interleaved=False)
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert back is not None and back.low is not None and back.high is not None
    assert ratio.low <= ratio.value * (1 + 1e-9) and ratio.value <= ratio.high * (1 + 1e-9)
    assert ratio.low == pytest.approx(1 / back.high)
    assert ratio.high == pytest.approx(1 / back.low)


# -- thresholds


def held(text: str, *files: ResultFile, **options: Any) -> Verdict:
    return judge(parse_threshold(text), located(files), file_names(files), **options)


@pytest.mark.parametrize(
    ("text", "tested", "crossed"),
    [
        ("latency.median_us: nccl_gin / nvshmem > 1.4", 4, 4),
        ("latency.median_us: nccl_gin / nvshmem > 1.6", 4, 0),
        ("median_us: nccl_gin / nvshmem > 1.4 @ bytes<=1K", 2, 2),
        ("median_us: nccl_gin / nvshmem > 1.4 @ bytes<=1K, route=direct", 1, 1),
        ("median_us: native / direct >= 2 @ backend=nvshmem", 2, 2),
        ("median_us: nvshmem > 1.5", 4, 2),
        ("bandwidth_GBps: nvshmem < 4 @ bytes=4K", 2, 1),
        ("median_us: thread > 100", 8, 0),
    ],
)
def test_thresholds_within_a_file(text: str, tested: int, crossed: int) -> None:
    verdict = held(text, sweep())
    assert (verdict.tested, len(verdict.crossings)) == (tested, crossed)


@pytest.mark.parametrize(
    ("text", "tested", "crossed"),
    [
        ("median_us: new / base > 1.1", 16, 8),
        ("median_us: base / newer < 1", 8, 0),
        ("median_us: newer / base > 0.9", 8, 8),
        ("median_us: new > 3", 16, 2),
        ("median_us: nccl_gin / nvshmem > 1.4", 12, 12),
    ],
)
def test_thresholds_between_files(text: str, tested: int, crossed: int) -> None:
    files = [sweep("first"), sweep("second", 1.2), sweep("newer", 1.0)]
    verdict = held(text, *files)
    assert (verdict.tested, len(verdict.crossings)) == (tested, crossed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bandwidth.median_us: nccl_gin / nvshmem > 1",
            "matches no row. There are rows of latency with 8 to 4096 bytes",
        ),
        ("median_us: nccl_gin / nvshmem > 1 @ bytes>1G", "matches no row"),
        ("median_us: nccl_gin / mpi > 1", "no row has nccl_gin and mpi"),
        ("median_us: nccl_gin / native > 1", "no row has nccl_gin and native"),
        ("speed: nvshmem > 1", "speed is no metric"),
        ("median_us: nvshmem > 1 @ color=red", "rows have no field color"),
        ("median_us: new / base > 1", "there is one only"),
        ("p999_us: nvshmem > 1", "has a p999_us"),
    ],
)
def test_thresholds_that_match_nothing_are_errors(text: str, message: str) -> None:
    with pytest.raises(gin.ResultsError) as caught:
        held(text, sweep())
    assert message in str(caught.value)


def test_new_and_a_file_that_is_none() -> None:
    with pytest.raises(gin.ResultsError, match="nvshmem is none of the files base, other"):
        held("median_us: new / nvshmem > 1", sweep(), sweep("other"))


def test_sure_needs_the_whole_interval() -> None:
    rows = [
        row(backend="nvshmem", median_low_us=0.8, median_high_us=1.2),
        row(1.5, backend="nccl_gin", median_low_us=1.3, median_high_us=1.7),
    ]
    text = "median_us: nccl_gin / nvshmem > 1.3"
    assert len(held(text, results(*rows)).crossings) == 1
    unsure = held(text, results(*rows), sure=True)
    assert (len(unsure.crossings), unsure.unsure) == (0, 1)
    assert len(held("median_us: nccl_gin / nvshmem > 1.05", results(*rows), sure=True).crossings) == 1


# -- what is shown


@pytest.mark.parametrize("width", [40, 60, 100])
def test_tables_fit(width: int) -> None:
    for found in (joined(sweep()), joined(sweep(), sweep("new", 1.1, median_low_us=1.0, median_high_us=2.0))):
        assert max(map(len, plain(found, width).splitlines())) <= width


def test_markdown_is_a_table_and_escapes_names() -> None:
    found = joined(sweep("a|b"), sweep("<new>"))
    text = markdown(found, [held("median_us: nccl_gin / nvshmem > 1", sweep())], found.remarks, [], limit=3)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "a\\|b" in text
    assert "<new>" not in text
    assert "5 more rows are not shown" in text
    assert "**crossed**" in text


def test_summary_counts_what_is_sure() -> None:
    one = sweep(median_low_us=0.99, median_high_us=1.01)
    native, direct = summaries(joined(one))
    told = "geometric mean 1.500 over 2 rows; 0 faster, "
    assert native.startswith(f"median us, nccl_gin / nvshmem route=native: {told}")
    assert direct.startswith(f"median us, nccl_gin / nvshmem route=direct: {told}")
    (both,) = summaries(joined(one, by="route", base="direct"))
    assert both.startswith("median us, native / direct: geometric mean 2.000 over 4 rows")


def test_intervals_show_on_which_side_of_1_they_lie() -> None:
    assert bounds(1.0004, 1.015) == ("1.0004", "1.015")
    assert bounds(0.98, 0.99996) == ("0.980", "0.99996")
    assert bounds(0.95, 1.2) == ("0.950", "1.200")
    assert bounds(1.0, 1.0000000001) == ("1.000", "1.0000000")


def paired(common: float, own: float, *, turns: int = 5, runs: int = 400) -> float:
    """How often the interval of a ratio of two alike holds 1, when turns differ by `common` for both and `own` for each."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(runs):
        level = rng.normal(0, common, (turns, 1))
        rows = []
        for _ in range(2):
            taken = np.exp(level + rng.normal(0, own, (turns, 1)) + rng.normal(0, 0.3, (turns, 60)))
            middle = float(np.median(taken))
            rows.append(row(middle, turns_us=[float(np.median(turn)) for turn in taken]))
        ratio = ratio_of(rows[0], rows[1], "median_us", interleaved=True)
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        assert ratio.low <= ratio.value <= ratio.high
        held += ratio.low <= 1 <= ratio.high
    return held / runs


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("turns", [5, 10])
def test_the_interval_of_a_ratio_keeps_its_promise_when_drift_hits_both(common: float, turns: int) -> None:
    assert paired(common, 0.1, turns=turns) >= 0.92


@pytest.mark.parametrize("metric", ["median_us", "bandwidth_GBps"])
def test_a_ratio_is_no_surer_than_the_clock(metric: str) -> None:
    turns = [0.046] * 5
    rows = [row(us, turns_us=turns, step_us=0.0115) for us in (0.046, 0.046)]
    ratio = ratio_of(rows[0], rows[1], metric, interleaved=True)
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert ratio.low < 0.9 < 1.1 < ratio.high


def test_bandwidth_has_the_interval_of_the_times_turned_round() -> None:
    above = row(2.0, bytes=16, turns_us=[2.0, 2.2, 2.0, 2.2])
    below = row(1.0, bytes=16, turns_us=[1.0, 1.0, 1.0, 1.0])
    times = ratio_of(above, below, "median_us", interleaved=True)
    rates = ratio_of(above, below, "bandwidth_GBps", interleaved=True)
    assert times is not None and rates is not None and times.low and times.high
    assert (rates.value, rates.low, rates.high) == pytest.approx((1 / times.value, 1 / times.high, 1 / times.low))


def test_more_overlap_is_better_and_has_no_interval_of_times() -> None:
    above, below = (row(us, overlap_percent=p, turns_us=[us] * 5) for us, p in ((1.0, 90.0), (2.0, 45.0)))
    found = ratio_of(above, below, "overlap_percent", interleaved=True)
    assert found == Ratio(2.0)
    assert Ratio(2.0, 1.9, 2.1).verdict("overlap_percent") == "faster"


def test_rows_that_may_differ_in_a_field_did_not_take_turns() -> None:
    pair = [
        row(us, backend=name, bytes=n, turns_us=[us] * 5, median_low_us=us / 2, median_high_us=us * 2)
        for us, name, n in ((1.0, "nvshmem", 8), (2.0, "nccl_gin", 16))
    ]
    (found,) = joined(results(*pair), by="backend", ignore=["bytes"]).pairs
    assert found.ratio is not None and found.ratio.low is not None
    assert found.ratio.low < 1
