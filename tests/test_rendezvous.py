"""The rendezvous: joining, collective calls, deadlines, frames."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meeting import close_stores, new_address, open_stores, settings_for, together

from gin.errors import BootstrapError, BootstrapTimeoutError, ConfigError, Error, RemoteError, TimeoutError
from gin.launch.spawn import spawn
from gin.rendezvous import join
from gin.rendezvous.frames import MEMBER, Decoder, Limits, ProtocolError, encode
from gin.rendezvous.store import Store

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("bare_environment")]

SIZES = [1, 2, 3, 5]


@pytest.mark.parametrize("size", SIZES)
def test_collective_calls(stores: Callable[..., list[Store]], size: int, address: str) -> None:
    ranks = stores(size, address)

    def work(rank: int) -> None:
        store = ranks[rank]
        assert (store.rank, store.size, store.local_rank, store.local_size) == (rank, size, rank, size)
        assert len(set(store.hosts)) == 1
        for turn in range(5):
            payload = bytes([rank]) * (turn * 1000 + rank)
            assert store.allgather(f"turn {turn}", payload) == [bytes([r]) * (turn * 1000 + r) for r in range(size)]
            root = turn % size
            sent = b"from %d" % rank if rank == root else None
            assert store.broadcast("root", sent, root=root) == b"from %d" % root
            store.barrier("turn")

    assert together(size, work) == [None] * size


def test_large_payloads(stores: Callable[..., list[Store]], address: str) -> None:
    ranks = stores(3, address)
    payloads = [os.urandom(3_000_000 + rank) for rank in range(3)]
    for result in together(3, lambda rank: ranks[rank].allgather("large", payloads[rank])):
        assert result == payloads
    with pytest.raises(ConfigError, match="too much for the rendezvous"):
        ranks[0].allgather("huge", bytes(MEMBER.payload // 3 + 1))


def test_groups_have_their_own_sequence(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(5)

    def work(rank: int) -> None:
        store = ranks[rank]
        if rank in (1, 3):
            for turn in range(3):  # a group that is ahead of the others does not skew the calls of all
                assert store.allgather(f"pair {turn}", b"%d" % rank, group=(3, 1)) == [b"3", b"1"]
        if rank in (0, 2, 4):
            assert store.broadcast("odd", b"x" if rank == 4 else None, root=4, group=[0, 2, 4]) == b"x"
        assert store.allgather("all", b"%d" % rank) == [b"%d" % r for r in range(5)]

    assert together(5, work) == [None] * 5


@pytest.mark.parametrize("group", [(0, 0, 1), (1, 2), (0, 3), (-1, 0)])
def test_wrong_groups(stores: Callable[..., list[Store]], group: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="distinct ranks"):
        stores(3)[0].barrier("x", group=group)


def test_groups_in_different_order_do_not_match(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)
    orders = [(0, 1), (1, 0)]
    for result in together(2, lambda rank: ranks[rank].allgather("x", b"", group=orders[rank])):
        assert isinstance(result, Error)
        assert "[1, 0]" in str(result)


def test_different_calls_name_both(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)

    def work(rank: int) -> Any:
        if rank == 2:
            time.sleep(0.1)
        return ranks[rank].barrier("close") if rank == 1 else ranks[rank].allgather("window 3", b"")

    for result in together(3, work):
        assert type(result) is Error
        assert "allgather 'window 3'" in str(result)
        assert "barrier 'close'" in str(result)
        assert "rank 1" in str(result)
    assert together(3, lambda rank: ranks[rank].barrier("next")) == [None] * 3


def test_a_deadline_names_the_missing_ranks(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(5)
    began = time.monotonic()

    def work(rank: int) -> Any:
        return ranks[rank].allgather("window 3", b"", timeout=0.3 if rank == 0 else 30) if rank in (0, 1, 3) else None

    results = together(5, work)
    assert time.monotonic() - began < 5
    for rank in (0, 1, 3):
        assert isinstance(results[rank], TimeoutError)
        assert "ranks 2, 4 have not reached 'window 3' within 0.3 s" in str(results[rank])
        assert results[rank].record["ranks"] == [2, 4]
    with pytest.raises(TimeoutError, match="ranks 2, 4 have not reached"):  # latecomers are told the same
        ranks[2].allgather("window 3", b"")


def test_failure_reaches_everybody(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)
    heard: list[tuple[int, int, str]] = []
    for store in ranks:
        store.on_failure(lambda rank, reason, at=store.rank: heard.append((at, rank, reason)))

    def work(rank: int) -> Any:
        if rank == 1:
            time.sleep(0.1)
            ranks[1].fail("kernel 'shift' timed out")
            return None
        return ranks[rank].barrier("wait")

    results = together(3, work)
    for rank in (0, 2):
        assert isinstance(results[rank], RemoteError)
        assert "rank 1 (process" in str(results[rank])
        assert "kernel 'shift' timed out" in str(results[rank])
        assert results[rank].record == {"rank": 1}
    assert sorted(at for at, _, _ in heard) == [0, 2]
    assert {rank for _, rank, _ in heard} == {1}
    late: list[int] = []
    ranks[0].on_failure(lambda rank, reason: late.append(rank))
    assert late == [1]
    with pytest.raises(RemoteError, match="rank 1"):
        ranks[2].barrier("after")
    with pytest.raises(RemoteError, match="this one"):
        ranks[1].barrier("after")


def test_a_rank_that_left_ends_the_calls_that_need_it(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)

    def work(rank: int) -> Any:
        if rank == 2:
            time.sleep(0.05)
            return ranks[2].close()
        return ranks[0].barrier("early") if rank == 0 else None

    result = together(3, work)[0]
    assert isinstance(result, RemoteError)
    assert result.record == {"rank": 2, "ranks": [2]}
    with pytest.raises(RemoteError, match=r"rank 2 has left the job .* before 'early'"):
        ranks[1].barrier("early")
    assert ranks[0].departed == {2}
    assert together(2, lambda rank: ranks[rank].barrier("pair", group=(0, 1))) == [None] * 2


def test_a_rank_that_is_about_to_close_is_known_and_can_still_fail(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)
    ranks[2].leaving()
    deadline = time.monotonic() + 10
    while ranks[0].departed != {2} or ranks[1].departed != {2}:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert together(3, lambda rank: ranks[rank].barrier("still all")) == [None] * 3
    ranks[2].fail("in the end")
    with pytest.raises(RemoteError, match=r"rank 2.*in the end"):
        ranks[0].barrier("after")


def test_calls_after_close(stores: Callable[..., list[Store]]) -> None:
    for size in (1, 2):
        ranks = stores(size)
        close_stores(ranks)
        for store in ranks:
            with pytest.raises(ConfigError, match="closed"):
                store.barrier("x")
            store.close()


def test_rank_zero_waits_for_the_others_and_no_longer(stores: Callable[..., list[Store]]) -> None:
    ranks = stores(3)
    began = time.monotonic()
    ranks[0].close(timeout=0.3)
    assert 0.2 < time.monotonic() - began < 3
    with pytest.raises(RemoteError, match="rank 0 has left"):
        ranks[1].barrier("x")


def test_two_jobs_at_one_address(stores: Callable[..., list[Store]], address: str) -> None:
    first, second = stores(3, address), stores(3, address)
    assert together(3, lambda rank: second[rank].allgather("b", b"2")) == [[b"2"] * 3] * 3
    assert together(3, lambda rank: first[rank].allgather("a", b"1")) == [[b"1"] * 3] * 3
    close_stores(first)
    assert together(3, lambda rank: second[rank].allgather("b", b"3")) == [[b"3"] * 3] * 3


def test_again_with_another_size(stores: Callable[..., list[Store]], address: str) -> None:
    for size in (2, 4, 2, 1, 3, 2):
        ranks = stores(size, address)
        assert together(size, lambda rank, at=ranks: len(at[rank].allgather("x", b""))) == [size] * size
        close_stores(ranks)


def test_a_late_rank_is_waited_for(nothing_left: None, address: str) -> None:
    def work(rank: int) -> Store:
        time.sleep(0.4 * rank)
        return join(settings_for(address), rank=rank, size=3)

    ranks = together(3, work)
    close_stores(ranks)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_missing_ranks_are_named_when_joining(nothing_left: None, kind: str) -> None:
    config = settings_for(new_address(kind), connect_timeout="300ms")
    results = together(2, lambda rank: join(config, rank=2 * rank, size=4))
    assert isinstance(results[0], BootstrapTimeoutError)
    assert isinstance(results[0], TimeoutError)
    for words in ("ranks 1, 3", "never joined", "GIN_CONNECT_TIMEOUT"):
        assert words in str(results[0])
    assert isinstance(results[1], BootstrapError)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_rank_zero_that_never_comes(nothing_left: None, kind: str) -> None:
    address = new_address(kind)
    began = time.monotonic()
    with pytest.raises(BootstrapError, match=r"could not join rank 0 at .*GIN_CONNECT_TIMEOUT") as caught:
        join(settings_for(address, connect_timeout="300ms"), rank=1, size=2)
    assert address.removeprefix("unix:") in str(caught.value)
    assert time.monotonic() - began < 3


def test_a_failed_try_can_be_repeated(nothing_left: None) -> None:
    address = new_address("unix")
    with pytest.raises(BootstrapTimeoutError):
        join(settings_for(address, connect_timeout="100ms"), rank=0, size=2)
    close_stores(open_stores(2, address))


def test_ranks_that_disagree_on_the_size(nothing_left: None) -> None:
    config = settings_for(new_address("unix"), connect_timeout="500ms")
    results = together(2, lambda rank: join(config, rank=rank, size=2 + rank))
    assert "rank 0 has not opened size 3" in str(results[1])
    assert "it has: size 2" in str(results[1])


def test_two_processes_with_one_rank(stores: Callable[..., list[Store]]) -> None:
    address = new_address("unix")
    stores(2, address)

    def second_rank_one() -> None:
        join(settings_for(address), rank=1, size=2)

    with pytest.raises(BootstrapError, match=r"rank 1 is taken by rank 1 \(process"):
        spawn(1, second_rank_one, timeout=20)


# Frames


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary(max_size=300))), st.data())
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cutting(messages: list[tuple[dict[str, int], bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode({**header, "op": "x"}, payload) for header, payload in messages)
    decoder, found = Decoder(MEMBER), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:count])
        stream = stream[count:]
        found += list(decoder)
    assert [(frame.header, frame.payload) for frame in found] == [({**h, "op": "x"}, p) for h, p in messages]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    decoder = Decoder(Limits(64, 0))
    decoder.feed(data)
    try:
        for frame in decoder:
            assert isinstance(frame.header["op"], str)
    except ProtocolError:
        pass
