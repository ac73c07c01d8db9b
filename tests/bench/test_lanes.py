"""Places of messages and signals: inside their room, equal for both leaders, and of all kinds."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gin.bench.lanes import HOME, PAGE, SPAN, lane, signals_for

TURNS = st.integers(0, 1 << 20)


@given(TURNS, st.integers(0, 1 << 20), st.integers(1, 400), st.booleans(), st.integers(0, 4095), st.integers(0, 4095))
def test_places_are_inside_their_room(turn: int, nbytes: int, channels: int, each: bool, one: int, two: int) -> None:
    at = lane(turn, nbytes, channels, each=each, phases=(8 * (one // 8), 8 * (two // 8)))
    assert all(0 <= offset < SPAN and offset % 8 == 0 for offset in at.offsets)
    assert all(signal >= 0 and signal + 3 * channels <= signals_for(channels, 0) for signal in at.signals)
    assert nbytes <= PAGE or at.offsets == (0, 0)


@given(st.integers(1, 400), st.integers(0, 5000))
def test_each_context_begins_a_page_where_signals_move(channels: int, others: int) -> None:
    moves = any(lane(turn, 8, channels, each=True).signals != (0, 0) for turn in range(64))
    assert moves == (channels <= 5)
    if moves:
        assert (signals_for(channels, others) + others) * 8 % 4096 == 0
    else:
        assert signals_for(channels, others) == 3 * channels
    assert signals_for(channels, others, move=False) == 3 * channels


@given(TURNS, st.booleans())
def test_both_leaders_meet_the_same_places(turn: int, each: bool) -> None:
    pair = [lane(2 * (turn // 2) + leader, 8, 1, each=each) for leader in (0, 1)]
    assert pair[0] == pair[1]


@given(TURNS)
def test_ranks_alike_have_one_place(turn: int) -> None:
    at = lane(turn, 8, 1, each=False)
    assert (len(set(at.offsets)), len(set(at.signals))) == (1, 1)


@pytest.mark.parametrize("bit", [256, 512, 1024, 2048])
@pytest.mark.parametrize("phases", [(0, 0), (0x900, 0x900), (64, 3000 // 8 * 8)])
@pytest.mark.parametrize("first", [0, 16, 160])
def test_sixteen_places_hold_every_combination_of_an_address_bit(bit: int, phases: tuple[int, int], first: int) -> None:
    seen: Counter[tuple[bool, ...]] = Counter()
    for number in range(first, first + 16):
        at = lane(2 * number, 8, 1, each=True, phases=phases)
        messages = [phase + offset for phase, offset in zip(phases, at.offsets, strict=True)]
        seen[tuple(bool(address & bit) for address in (*messages, *(8 * signal for signal in at.signals)))] += 1
    assert seen == Counter(itertools.product((False, True), repeat=4))


def test_thirty_two_places_differ() -> None:
    found = [lane(2 * number, 8, 1, each=True) for number in range(32)]
    for end in (0, 1):
        assert len({at.offsets[end] for at in found}) == len({at.signals[end] for at in found}) == 32
        assert set(Counter(at.offsets[end] // PAGE for at in found).values()) == {4}
        assert set(Counter(8 * at.signals[end] // PAGE for at in found).values()) == {8}


def test_the_first_place_is_home() -> None:
    assert lane(0, 8, 1, each=True) == HOME
