"""The verbs wire on a real verbs device: Soft-RoCE in virtual machines, one alone and two with a network between them.

They take minutes under software emulation. Skipped where qemu, a program that rxe-vm needs, or the kernel's package is
missing; README names the packages. GIN_TEST_VM=0 leaves them out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gin
from gin import _core

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
CONTRACT = (
    "transfer.put",
    "transfer.every_peer",
    "transfer.put_value",
    "transfer.get",
    "transfer.registered*",
    "limits.split",
    "signal.several",
    "atomic.every_operation",
    "order.covers_a_hundred_puts",
)
MISSING = 3  # rxe-vm's exit status

pytestmark = pytest.mark.timeout(1200)


class Machines:
    """Starts virtual machines that see what this Python runs from, and the kernels compiled so far."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        places = {sys.prefix, sys.base_prefix, str(ROOT), str(Path(gin.__file__).parents[1]), str(cache)}
        places.add(str(Path(_core.__file__).resolve().parent))
        self._shown = [word for place in sorted(places) for word in ("-r", place)]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GIN_")}
        paths = [str(Path(gin.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1", **more}

    def warm(self, *command: str, **more: str) -> None:
        """Runs a command here, over shared memory, so that the guests find its kernels compiled."""
        environment = self.environment(GIN_CACHE_DIR=str(self.cache), GIN_WIRE="shm", **more)
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=300, check=False)

    def run(self, script: str, *options: str, seconds: int = 600, **more: str) -> tuple[int, str]:
        """A shell script in one guest (or `-n 2`): its exit status and output."""
        # The cache has to belong to the guest's user.
        prepared = f"export HOME=/tmp GIN_CACHE_DIR=/tmp/kernels; cp -r {self.cache} $GIN_CACHE_DIR; {script}"
        command = [str(HERE / "rxe-vm"), "-t", str(seconds), *self._shown, *options, "--", "bash", "-c", prepared]
        with subprocess.Popen(
            command, env=self.environment(**more), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as tool:
            try:
                output, errors = tool.communicate(timeout=seconds + 60)
            finally:
                tool.terminate()  # which ends its machines
        if tool.returncode == MISSING:
            pytest.skip(errors.strip())
        return tool.returncode, output + errors


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    if os.environ.get("GIN_TEST_VM") == "0":
        pytest.skip("GIN_TEST_VM=0")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("qemu-system-x86_64 is missing: see README for the packages")
    cache = tmp_path_factory.mktemp("vm") / "kernels"
    cache.mkdir(mode=0o700)
    return Machines(cache)


def test_the_wire_on_its_own(machines: Machines) -> None:
    folder = os.environ.get("GIN_TEST_CPP")
    if not folder:
        pytest.skip("GIN_TEST_CPP names no built C++ tests")
    program = Path(folder) / "wire_verbs"
    status, output = machines.run(str(program), "-r", folder, seconds=300, GIN_TEST_VERBS="1")
    assert status == 0 and "ok   nothing_stays_open" in output, output


def test_info_names_the_port_and_its_address(machines: Machines) -> None:
    status, output = machines.run(f"{sys.executable} -m gin info", seconds=200)
    assert status == 0, output
    assert re.search(r"verbs +usable", output), output
    assert re.search(r"rxe0 port 1: Ethernet, GID \d+ 127\.0\.0\.1 RoCE v2, MTU \d+", output), output


def test_a_low_limit_of_locked_memory_is_named(machines: Machines) -> None:
    program = "import gin; gin.init(wire='verbs')"
    without = f'setpriv --bounding-set -ipc_lock bash -c "ulimit -l 16; {sys.executable} -c \\"{program}\\""'
    status, output = machines.run(without, seconds=200)
    assert status != 0 and "locked-memory limit of this process is 16384 bytes" in output, output


def test_the_contract_holds_between_ranks_of_one_machine(machines: Machines) -> None:
    words = [word for case in CONTRACT for word in ("--case", case)]
    command = [
        "-m",
        "gin",
        "conformance",
        "--backend",
        "ibrc_proxy",
        "--route",
        "native",
        "--ranks",
        "2,3",
        "-v",
        *words,
    ]
    machines.warm(sys.executable, *command)
    script = shlex.join([sys.executable, *command, "--wire", "verbs"])
    status, output = machines.run(script, seconds=1000)
    assert status == 0 and " 0 failed, 0 refused" in output, output


def test_bench_runs_over_verbs(machines: Machines) -> None:
    bench = "-m gin bench latency --backend ibrc_proxy --route native -b 8 -e 64 -n 20 -w 3 --ranks 2"
    machines.warm(sys.executable, *bench.split())
    status, output = machines.run(f"{sys.executable} {bench} --wire verbs", seconds=300)
    assert status == 0 and "wire=verbs" in output, output


# -- two machines -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts(machines: Machines) -> dict[str, dict[int, tuple[int, str]]]:
    """What each job of programs/hosts.sh ended with on each machine: its status and output."""
    start = [sys.executable, "-P", "-m", "gin", "run", "-n", "2", "--", sys.executable]
    machines.warm(*start, str(PROGRAMS / "sweep.py"))
    machines.warm(*start, str(PROGRAMS / "stream.py"), "3", "1", "true")
    bench = "-m gin bench latency --backend ibrc_proxy --route native -b 8 -e 8 -n 5 --ranks 2"
    machines.warm(sys.executable, *bench.split())
    status, output = machines.run(
        f"bash {PROGRAMS / 'hosts.sh'} {sys.executable}", "-n", "2", "-c", "1", "-m", "1536", seconds=900
    )
    assert status != 124, output
    found: dict[str, dict[int, tuple[int, str]]] = {}
    for node in (0, 1):
        text = "\n".join(line[4:] for line in output.splitlines() if line.startswith(f"[{node}]"))
        for name, body, ended in re.findall(
            r"^== ([\w-]+)\n(.*?)^== \1 ended with (\d+)$", text, re.DOTALL | re.MULTILINE
        ):
            found.setdefault(name, {})[node] = int(ended), body
    return found


@pytest.fixture
def job(hosts: dict[str, dict[int, tuple[int, str]]], request: pytest.FixtureRequest) -> dict[int, tuple[int, str]]:
    name = request.param
    assert set(hosts.get(name, {})) == {0, 1}, f"{name} did not run on both machines: {hosts}"
    return hosts[name]


@pytest.mark.parametrize("job", ["sweep", "loss", "reorder", "again", "link-local"], indirect=True)
def test_all_bytes_arrive_between_two_machines(job: dict[int, tuple[int, str]]) -> None:
    for node, (status, output) in job.items():
        assert status == 0 and f"rank {node} of 2: 8 rounds, 0 wrong bytes" in output, output


@pytest.mark.parametrize("job", ["latency"], indirect=True)
def test_bench_runs_between_two_machines(job: dict[int, tuple[int, str]]) -> None:
    assert [status for status, _ in job.values()] == [0, 0] and "wire=verbs" in job[0][1], job


@pytest.mark.parametrize("job", ["link-down"], indirect=True)
def test_a_link_that_goes_down_under_puts(job: dict[int, tuple[int, str]]) -> None:
    assert job[0][0] == 0 and re.search(r"RemoteError after \d\.\d s: rank 0: put to rank 1", job[0][1]), job
    assert job[1][0] == 0 and "RemoteError" in job[1][1] and "rank 0 failed" in job[1][1], job


@pytest.mark.parametrize("job", ["silence"], indirect=True)
def test_a_peer_that_answers_no_more(job: dict[int, tuple[int, str]]) -> None:
    assert "transport retry counter exceeded" in job[0][1] and "put to rank 1" in job[0][1], job
    assert job[1][0] == 0 and "rank 0 failed" in job[1][1], job


@pytest.mark.parametrize("job", ["killed"], indirect=True)
def test_a_rank_that_is_killed(job: dict[int, tuple[int, str]]) -> None:
    assert job[1][0] == 137 and job[0][0] == 0, job
    assert "RemoteError" in job[0][1] and "rank 1" in job[0][1], job


@pytest.mark.parametrize("job", ["wrong-gid"], indirect=True)
def test_addresses_of_different_networks_are_named(job: dict[int, tuple[int, str]]) -> None:
    for status, output in job.values():
        assert status != 0 and "GIN_IB_GID_INDEX" in output and "10.77.0.1" in output, output
