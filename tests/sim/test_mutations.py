"""The contract's cases fail on a library that breaks its promises."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What is planted, and a backend and cases that have to notice it.
MUTATIONS = [
    ("fault.ignore_order=1", "nccl_gin", "order.*"),  # no fence before a signal
    ("fault.ignore_order=1", "ibrc_proxy", "order.*"),
    ("fault.settle_early=1", "nvshmem", "order.*"),  # acknowledged before it has settled
    ("fault.complete_early=1", "nccl_gin", "local.*"),  # acknowledged before the source has been read
    ("fault.lose_one_in=5", "ibrc_proxy", "signal.*"),  # a descriptor lost
    ("fault.signal_twice_one_in=5", "nvshmem", "signal.*"),  # a signal applied twice
]


def conformance(backend: str, cases: str, faults: str) -> subprocess.CompletedProcess[str]:
    words = ["--platform", "sim", "--route", "native", "--ranks", "2", "--backend", backend, "--case", cases]
    command = [sys.executable, "-m", "gin", "conformance", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=170, env={**os.environ, "GIN_FAULTS": faults}
    )


@pytest.mark.parametrize(("faults", "backend", "cases"), MUTATIONS)
def test_planted_defects_are_noticed(faults: str, backend: str, cases: str) -> None:
    done = conformance(backend, cases, faults)
    assert done.returncode == 1 and "FAIL" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("backend", "cases"), sorted({(backend, cases) for _, backend, cases in MUTATIONS}))
def test_the_library_as_it_is_passes(backend: str, cases: str) -> None:
    done = conformance(backend, cases, "")
    assert done.returncode == 0, done.stdout + done.stderr
