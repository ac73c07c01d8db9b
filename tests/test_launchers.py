"""The same program under real launchers: mpirun, torchrun, gin run, and by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gin

pytestmark = pytest.mark.timeout(120)

PROGRAM = textwrap.dedent("""
    import json, os, sys
    from gin.config import Config
    from gin.rendezvous import join

    bootstrap = None
    if "torch" in sys.argv:
        import torch.distributed as bootstrap
        bootstrap.init_process_group("gloo")
        group = bootstrap.new_group([0, 1])
    for turn in range(2):
        with join(Config.from_sources(connect_timeout="60s"), bootstrap) as store:
            values = store.allgather("values", str(store.rank * store.rank).encode())
            result = [store.rank, store.size, store.local_rank, store.local_size, store.ranks.source]
            result.append([int(value) for value in values])
    if bootstrap is not None and store.rank < 2:
        with join(Config.from_sources(connect_timeout="60s"), group) as store:
            result.append(len(store.allgather("pair", b"")))
    sys.stdout.write(json.dumps(result) + "\\n")
    sys.stdout.flush()
    if bootstrap is not None:
        bootstrap.destroy_process_group()
""")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIN_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(Path(gin.__file__).parents[1]), "XDG_CONFIG_HOME": str(folder), **more}


def results(command: list[str], variables: dict[str, str]) -> list[list[object]]:
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def expected(n: int, source: str) -> list[list[object]]:
    return [[rank, n, rank, n, source, [other * other for other in range(n)]] for rank in range(n)]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_mpirun(program: Path, tmp_path: Path, n: int) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    variables = environment(tmp_path, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = ["mpirun", "--oversubscribe", "-n", str(n), sys.executable, str(program)]
    assert results(command, variables) == expected(n, "Open MPI")


def torchrun(n: int, *options: str) -> list[str]:
    """The command, or a skip: GIN_TEST_TORCHRUN names one that is not on the path."""
    found = os.environ.get("GIN_TEST_TORCHRUN") or shutil.which("torchrun")
    if not found:
        pytest.skip("torchrun is not installed (pip install torch), and GIN_TEST_TORCHRUN does not name one")
    return [found, *(options or ["--standalone"]), f"--nproc-per-node={n}"]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_torchrun(program: Path, tmp_path: Path, n: int) -> None:
    assert results([*torchrun(n), str(program)], environment(tmp_path)) == expected(n, "torchrun")


def test_torchrun_of_two_nodes(program: Path, tmp_path: Path) -> None:
    """Two agents on this host stand for two hosts: the ranks meet over TCP, beside torchrun's own store."""
    options = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port=29577"]
    commands = [[*torchrun(2, *options, f"--node-rank={node}"), str(program)] for node in range(2)]
    variables = environment(tmp_path)
    agents = [subprocess.Popen(c, env=variables, stdout=subprocess.PIPE, text=True) for c in commands]
    lines = [line for agent in agents for line in agent.communicate(timeout=100)[0].splitlines()]
    assert [agent.returncode for agent in agents] == [0, 0]
    assert sorted(json.loads(line) for line in lines) == expected(4, "torchrun")


def test_torch_distributed_as_bootstrap(program: Path, tmp_path: Path) -> None:
    found = results([*torchrun(3), str(program), "torch"], environment(tmp_path))
    plain = expected(3, "torch.distributed")
    assert found == [[*plain[0], 2], [*plain[1], 2], plain[2]]


@pytest.mark.parametrize("n", [1, 3])
def test_gin_run(program: Path, tmp_path: Path, n: int) -> None:
    command = [sys.executable, "-P", "-m", "gin", "run", "-n", str(n), str(program)]
    assert results(command, environment(tmp_path)) == expected(n, "GIN_RANK")


@pytest.mark.parametrize("where", [{}, {"GIN_RENDEZVOUS": "unix:@gin-test-by-hand"}, {"MASTER_ADDR": "localhost"}])
def test_by_hand(program: Path, tmp_path: Path, where: dict[str, str]) -> None:
    if "MASTER_ADDR" in where:
        where = {**where, "GIN_PORT": "29611"}
    processes = []
    for rank in range(3):
        variables = environment(tmp_path, GIN_RANK=str(rank), GIN_SIZE="3", **where)
        processes.append(
            subprocess.Popen([sys.executable, str(program)], env=variables, stdout=subprocess.PIPE, text=True)
        )
    lines = [process.communicate(timeout=60)[0] for process in processes]
    assert sorted(json.loads(line) for line in lines) == expected(3, "GIN_RANK")


def test_plain_python(program: Path, tmp_path: Path) -> None:
    assert results([sys.executable, str(program)], environment(tmp_path)) == expected(1, "single process")
