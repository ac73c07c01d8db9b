"""The contract's cases fail on a library that breaks its promises.

The defects are planted below all backends, in the simulated network. Those of device code are planted by
tests/contract/test_mutations.py and tests/cpp/sim_defects.cpp.
"""

from __future__ import annotations

import pytest

from gin.conformance import Plan, Result, run, select
from gin.conformance.results import FAIL, PASS

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")

# What is planted, what it amounts to, and cases of which one has to notice it.
DEFECTS = {
    "fault.ignore_order=1": ("no fence before a signal", ("order.covers_a_hundred_puts[ordered signal]",)),
    "fault.settle_early=1": ("acknowledged before it has settled", ("order.quiet",)),
    "fault.complete_early=1": ("acknowledged before the source has been read", ("local.source_reused[flush]",)),
    "fault.lose_one_in=5": ("a descriptor lost", ("signal.adds_up", "limits.more_than_a_queue_holds")),
    "fault.signal_twice_one_in=5": ("a signal applied twice", ("signal.adds_up",)),
}
SEEDS = 4  # each is one order of everything, and some are kind
# NVSHMEM's flush waits until all has settled; NCCL's quiet asks the target and not the card.
HARMLESS = {("fault.complete_early=1", "nvshmem"), ("fault.settle_early=1", "nccl_gin")}


def results(backend: str, cases: tuple[str, ...]) -> list[Result]:
    """What comes of the cases up to the first that fails."""
    found = []
    for result in run(Plan(select(cases), (backend,), ("native",), (2,), "sim", settings={"timeout": "1s"})):
        found.append(result)
        if result.outcome == FAIL:
            break
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", DEFECTS)
def test_planted_defects_are_noticed(fault: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_FAULTS", fault)
    for seed in range(SEEDS):
        monkeypatch.setenv("GIN_SEED", str(seed))
        found = results(backend, DEFECTS[fault][1])
        if found[-1].outcome == FAIL:
            break
    if (fault, backend) in HARMLESS:
        assert {result.outcome for result in found} == {PASS}, found
        return
    assert found[-1].outcome == FAIL, found
    assert "does not open" not in found[-1].reason, found[-1].reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_library_as_it_is_passes(backend: str) -> None:
    cases = tuple(dict.fromkeys(case for _, names in DEFECTS.values() for case in names))
    found = results(backend, cases)
    assert [result.outcome for result in found] == [PASS] * len(cases), found
