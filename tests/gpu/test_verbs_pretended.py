"""The CPU proxy over wire verbs with memory of real GPUs, on a pretended RDMA device that copies for ranks of one process,
threads of it. GIN_TEST_CPP names the folder of the built C++ tests, which has its library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.two_gpus
@pytest.mark.timeout(300)
def test_signals_and_payload_by_a_nic_that_writes_to_gpus() -> None:
    library = Path(os.environ.get("GIN_TEST_CPP", "/nowhere"), "fake")
    if not (library / "libibverbs.so.1").exists():
        pytest.skip("GIN_TEST_CPP names no folder of built C++ tests with a pretended libibverbs")
    program = Path(__file__).parents[1] / "verbs_threads.py"
    env = {**os.environ, "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [sys.executable, "-P", str(program), "cuda", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=env)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(": 0 wrong, by ['native'" in line for line in lines), done.stdout + done.stderr
