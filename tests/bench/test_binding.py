"""Which cores ranks are given, and that a process has its own back afterwards."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gin.bench import binding
from gin.bench.binding import Place, bound_to, in_order, share_for, share_of, text

HOLES = [1, 4, 5, 9, 12]


@pytest.mark.parametrize(
    ("cores", "sharers", "shares"),
    [
        ([0], 1, [(0,)]),
        ([7], 2, [(7,), (7,)]),
        ([0, 1], 2, [(0,), (1,)]),
        ([0, 1], 3, [(0,), (1,), (0,)]),
        ([3, 8], 5, [(3,), (8,), (3,), (8,), (3,)]),
        (HOLES, 2, [(1, 4), (5, 9, 12)]),
        (HOLES, 3, [(1,), (4, 5), (9, 12)]),
        (HOLES, 5, [(1,), (4,), (5,), (9,), (12,)]),
    ],
)
def test_shares(cores: list[int], sharers: int, shares: list[tuple[int, ...]]) -> None:
    assert [share_of(cores, index, sharers) for index in range(sharers)] == shares


@given(st.sets(st.integers(0, 4095), min_size=1, max_size=200), st.integers(1, 64))
def test_shares_are_even_and_nothing_is_lost(cores: set[int], sharers: int) -> None:
    shares = [share_of(sorted(cores), index, sharers) for index in range(sharers)]
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    given_out = [core for share in shares for core in share]
    if sharers <= len(cores):
        assert sorted(given_out) == sorted(cores)
    else:
        assert set(given_out) == cores
        assert max(map(given_out.count, cores)) - min(map(given_out.count, cores)) <= 1


def all_shares(*places: Place) -> list[tuple[int, ...]]:
    return [share_for(rank, places) for rank in range(len(places))]


def test_ranks_share_with_those_of_their_host_alone() -> None:
    assert all_shares(("a", [0, 1]), ("b", [0, 1]), ("a", [0, 1]), ("b", [0, 1])) == [(0,), (0,), (1,), (1,)]
    assert all_shares(("a", [0, 1, 2]), ("b", [0, 1, 2])) == [(0, 1, 2), (0, 1, 2)]


def test_ranks_that_were_placed_stay_there() -> None:
    assert all_shares(("a", [2]), ("a", [3])) == [(2,), (3,)]
    assert all_shares(("a", [0, 1]), ("a", [1, 2])) == [(0, 1), (1, 2)]
    assert all_shares(("a", [0, 1]), ("b", [0])) == [(0, 1), (0,)]


def test_a_core_that_one_rank_has_alone_is_left_to_it() -> None:
    assert all_shares(("a", [0]), ("a", [0, 1])) == [(0,), (1,)]
    assert all_shares(("a", [0, 1, 2, 3]), ("a", [2]), ("a", [0, 1, 2, 3])) == [(0,), (2,), (1, 3)]
    assert all_shares(("a", [0, 1]), ("a", [0]), ("a", [1])) == [(0, 1), (0,), (1,)]


def test_ranks_of_one_socket_share_that() -> None:
    socket_0, socket_1 = [0, 1, 2, 3], [4, 5, 6, 7]
    places = [("a", socket_0), ("a", socket_0), ("a", socket_1), ("a", socket_1)]
    assert all_shares(*places) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_where_nothing_is_bound() -> None:
    assert all_shares(("a", []), ("a", [])) == [(), ()]
    with bound_to(()):
        pass


def test_hyperthreads_of_a_core_are_given_out_together(tmp_path: Path) -> None:
    for core in range(8):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core % 4}\n")
    assert in_order({0, 1, 2, 3, 4, 5, 6, 7}, tmp_path) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert in_order({3, 7, 1}, tmp_path) == [1, 3, 7]
    assert all_shares(*[("a", in_order(range(8), tmp_path))] * 2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert in_order({5, 2, 11}, tmp_path / "no system") == [2, 5, 11]


def test_all_threads_are_bound_and_let_go() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)
    seen: list[set[int]] = []

    def look() -> None:
        for _ in range(2):
            asked.acquire(timeout=10)
            seen.append(os.sched_getaffinity(0))
            answered.release()

    other = threading.Thread(target=look)
    other.start()
    with bound_to({one}):
        inside = os.sched_getaffinity(0)
        asked.release()
        answered.acquire(timeout=10)
    asked.release()
    other.join(timeout=10)
    assert (inside, seen) == ({one}, [{one}, before])
    assert os.sched_getaffinity(0) == before


def test_an_error_lets_go_too() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), bound_to({min(before)}):
        raise KeyError
    assert os.sched_getaffinity(0) == before


def test_a_thread_with_cores_of_its_own_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {0: {0, 1, 2, 3}, 10: {0, 1, 2, 3}, 11: {3}}
    monkeypatch.setattr(os, "listdir", lambda folder: ["10", "11", "12"])  # the last has ended meanwhile

    def look(thread: int) -> set[int]:
        if thread == 12:
            raise ProcessLookupError(3, "No such process")
        return cores[thread]

    monkeypatch.setattr(os, "sched_getaffinity", look)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, wanted: cores.__setitem__(thread, wanted))
    with bound_to([0, 1]):
        assert (cores[10], cores[11]) == ({0, 1}, {3})
    assert (cores[10], cores[11]) == ({0, 1, 2, 3}, {3})


def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, cores: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    before = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with bound_to({4000}):
        assert os.sched_getaffinity(0) == before


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    host, cores = binding.here()
    assert host
    assert set(cores) == os.sched_getaffinity(0)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert binding.here() == (host, [])


@pytest.mark.parametrize(
    ("cores", "told"), [((), ""), ((3,), "3"), ((1, 0), "0-1"), ((0, 1, 2, 8, 10, 11), "0-2,8,10-11")]
)
def test_cores_in_words(cores: tuple[int, ...], told: str) -> None:
    assert text(cores) == told
