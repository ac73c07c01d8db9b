"""The wire verbs on a real verbs device: Soft-RoCE in virtual machines, one alone and two with a network between them.

Everything runs as jobs of few machines, because a machine takes longer to start than most jobs: programs/alone.sh in one,
programs/hosts.sh in each of two. Some minutes under software emulation.

GIN_TEST_VM    0 leaves them out; 1 fails instead of skipping where qemu, another program or the kernel's
               package is missing; README names the packages; `long` also runs every case of the contract, with 2, 3 and 4
               ranks of one machine, between two, and over a network that loses, delays, reorders and duplicates: an hour
GIN_TEST_SOAK  seconds of mixed operations with all data verified, on one machine and between two (20)
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
from gin.conformance import select

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
    "failure.of_one_peer",
)
RANKS = "2,3,4"
LOSSY = ("transfer.put_value", "transfer.get", "signal.several", "order.quiet", "atomic.every_operation")
FAMILIES = ("transfer", "signal", "order", "atomic", "local", "visibility", "limits")
LARGE = "limits.past_four_gibibytes"  # pins more memory than a machine for tests has
MISSING = 3  # rxe-vm's exit status
VM = os.environ.get("GIN_TEST_VM", "")
SOAK = os.environ.get("GIN_TEST_SOAK", "20")

pytestmark = pytest.mark.timeout(7200 if VM == "long" else 3600)


class Jobs(dict[str, tuple[int, str]]):
    """What each job of a machine ended with: its status and output."""

    def __init__(self, output: str) -> None:
        pattern = re.compile(r"^== ([\w-]+)\n(.*?)^== \1 ended with (\d+)$", re.DOTALL | re.MULTILINE)
        super().__init__({name: (int(ended), body) for name, body, ended in pattern.findall(output)})
        self.output = output

    def __missing__(self, name: str) -> tuple[int, str]:
        raise AssertionError(f"job {name} did not end: {self.output[:2000]}\n[...]\n{self.output[-8000:]}")


def missing(what: str) -> None:
    if VM in ("1", "long"):
        pytest.fail(f"GIN_TEST_VM={VM}, but {what}")
    pytest.skip(what)


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

    def warm(self, *command: str, seconds: int = 300) -> None:
        """Runs a command here, over shared memory, so that the guests find its kernels compiled."""
        environment = self.environment(GIN_CACHE_DIR=str(self.cache), GIN_WIRE="shm", GIN_BACKEND="ibrc_proxy")
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=seconds, check=False)

    def start(self, *command: str, ranks: int = 2) -> None:
        """The same for a program, with the launcher."""
        self.warm(sys.executable, "-P", "-m", "gin", "run", "-n", str(ranks), "--", sys.executable, "-P", *command)

    def cases(self, *patterns: str, ranks: str) -> None:
        """The same for cases of gin.conformance."""
        words = [word for pattern in patterns for word in ("--case", pattern)]
        options = ["--backend", "ibrc_proxy", "--route", "native", "--ranks", ranks]
        self.warm(sys.executable, "-P", "-m", "gin", "conformance", *options, *words, seconds=1200)

    def run(self, script: str, *options: str, seconds: int, **more: str) -> str:
        """A shell script in one guest (or `-n 2`): its output. Fails when it takes too long."""
        # The cache has to belong to the guest's user.
        prepared = f"export HOME=/tmp GIN_CACHE_DIR=/tmp/kernels; cp -r {self.cache} $GIN_CACHE_DIR; {script}"
        tool = [str(HERE / "rxe-vm"), "-t", str(seconds), *self._shown, *options]
        command = ["setpriv", "--pdeathsig", "TERM", *tool, "--", "bash", "-c", prepared]  # its machines end with it
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # Of a console, where the kernel's messages can come amid a character of a program's.
        with subprocess.Popen(
            command, env=self.environment(**more), cwd=ROOT, text=True, errors="replace", **pipes
        ) as tool:
            try:
                output, errors = tool.communicate(timeout=seconds + 60)
            finally:
                tool.terminate()
        if tool.returncode == MISSING:
            missing(errors.strip())
        assert tool.returncode != 124, output + errors
        return output + errors


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    if VM == "0":
        pytest.skip("GIN_TEST_VM=0")
    if shutil.which("qemu-system-x86_64") is None:
        missing("qemu-system-x86_64 is missing: README names the packages")
    try:
        _core.verbs_ports()
    except gin.Error as error:  # here no device is found, if not worse
        if "when it was built" in str(error):
            missing(str(error))
    cache = tmp_path_factory.mktemp("vm") / "kernels"
    cache.mkdir(mode=0o700)
    return Machines(cache)


def succeeded(job: tuple[int, str], *words: str) -> None:
    status, output = job
    assert status == 0, output
    for word in words:
        assert re.search(word, output), f"no {word!r} in {output}"


# -- one machine ------------------------------------------------------------------------------------------------------


def test_the_wire_on_its_own_with_two_devices(machines: Machines) -> None:
    folder = os.environ.get("GIN_TEST_CPP", "")
    if not folder:
        pytest.skip("GIN_TEST_CPP names no built C++ tests")
    script = f"GIN_TEST_VERBS=1 {Path(folder) / 'wire_verbs'} && echo all is well"
    output = machines.run(script, "-d", "2", "-r", folder, seconds=900)
    assert "ok   nothing_stays_open" in output and "all is well" in output, output
    assert "skip: fewer than 2" not in output, output


@pytest.fixture(scope="module")
def alone(machines: Machines) -> Jobs:
    bench = "-P -m gin bench latency --route native -b 8 -e 64 -n 20 -w 3 --ranks 2"
    machines.warm(sys.executable, *bench.split())
    machines.start(str(PROGRAMS / "leaks.py"), "1")
    machines.start(str(PROGRAMS / "lost.py"), "1", ranks=3)
    machines.start(str(PROGRAMS / "soak.py"), "1")
    machines.cases(*CONTRACT, ranks=RANKS)
    script = f"bash {PROGRAMS / 'alone.sh'} {sys.executable} {SOAK} {RANKS} {shlex.join(CONTRACT)}"
    output = machines.run(script, seconds=2400 + int(SOAK))
    return Jobs(output)


def test_info_names_the_port_and_its_address(alone: Jobs) -> None:
    port = r"rxe0 port 1: Ethernet, GID \d+ 127\.0\.0\.1 RoCE v2, MTU \d+"
    succeeded(alone["info"], r"verbs +usable", port)


def test_a_low_limit_of_locked_memory_is_named(alone: Jobs) -> None:
    status, output = alone["memlock"]
    assert status != 0 and "locked-memory limit of this process is 16384 bytes" in output, output


def test_bench_runs_over_verbs(alone: Jobs) -> None:
    succeeded(alone["latency"], "wire=verbs")


@pytest.mark.parametrize("name", ["leaks", "leaks-killed"])
def test_closed_communicators_leave_nothing_open(alone: Jobs, name: str) -> None:
    succeeded(alone[name], r"'qp': [1-9]\d*, .* during")


def test_ranks_go_on_without_one_that_was_killed(alone: Jobs) -> None:
    status, output = alone["lost"]
    assert status == 137, output
    for rank in (0, 2):
        told = re.search(rf"rank {rank} lost \[1\] and went on, in (\S+) s: .*rank 1", output)
        assert told and float(told[1]) < 60, output


def test_all_data_is_right_after_a_while_of_everything(alone: Jobs) -> None:
    succeeded(alone["soak"], *(rf"rank {rank} of 3: .* 0 wrong" for rank in range(3)))
    found = re.search(r"objects before: (.*), after: (.*)", alone.output)
    assert found and found[1] == found[2], found


def test_the_contract_holds_between_ranks_of_one_machine(alone: Jobs) -> None:
    succeeded(alone["contract"], " 0 failed, 0 refused")


# -- two machines -----------------------------------------------------------------------------------------------------


def both(output: str) -> dict[str, dict[int, tuple[int, str]]]:
    """What each job ended with on each machine."""
    found: dict[str, dict[int, tuple[int, str]]] = {}
    for node in (0, 1):
        text = "\n".join(line[4:] for line in output.splitlines() if line.startswith(f"[{node}]"))
        for name, ended in Jobs(text).items():
            found.setdefault(name, {})[node] = ended
    return found


@pytest.fixture(scope="module")
def hosts(machines: Machines) -> dict[str, dict[int, tuple[int, str]]]:
    machines.start(str(PROGRAMS / "sweep.py"))
    machines.start(str(PROGRAMS / "stream.py"), "3", "1", "true")
    machines.start(str(PROGRAMS / "atomics.py"), "3")
    machines.start(str(PROGRAMS / "soak.py"), "1")
    bench = "-P -m gin bench latency --route native -b 8 -e 8 -n 5 --ranks 2"
    machines.warm(sys.executable, *bench.split())
    machines.cases(*LOSSY, ranks="2")
    script = f"bash {PROGRAMS / 'hosts.sh'} {sys.executable} {SOAK} {shlex.join(LOSSY)}"
    return both(machines.run(script, "-n", "2", "-c", "1", "-m", "1536", seconds=2400 + int(SOAK)))


@pytest.fixture
def job(hosts: dict[str, dict[int, tuple[int, str]]], request: pytest.FixtureRequest) -> dict[int, tuple[int, str]]:
    name = request.param
    assert set(hosts.get(name, {})) == {0, 1}, f"{name} did not run on both machines: {hosts}"
    return hosts[name]


WHOLE = ["sweep", "loss", "reorder", "narrow-known", "small-port", "again", "link-local"]


@pytest.mark.parametrize("job", WHOLE, indirect=True)
def test_all_bytes_arrive_between_two_machines(job: dict[int, tuple[int, str]]) -> None:
    for node, (status, output) in job.items():
        assert status == 0 and f"rank {node} of 2: 8 rounds, 0 wrong bytes" in output, output


@pytest.mark.parametrize("job", ["latency"], indirect=True)
def test_bench_runs_between_two_machines(job: dict[int, tuple[int, str]]) -> None:
    assert [status for status, _ in job.values()] == [0, 0] and "wire=verbs" in job[0][1], job


@pytest.mark.parametrize("job", ["soak"], indirect=True)
def test_all_data_is_right_over_a_network_that_loses_packets(job: dict[int, tuple[int, str]]) -> None:
    for node in (0, 1):
        succeeded(job[node], rf"rank {node} of 2: .* 0 wrong")


@pytest.mark.parametrize("job", ["atomics"], indirect=True)
def test_atomics_bring_the_old_values_over_a_network_that_loses_packets(job: dict[int, tuple[int, str]]) -> None:
    for node in (0, 1):
        succeeded(job[node], rf"rank {node}: \d+ atomics, 0 old values and 0 sums wrong")


@pytest.mark.parametrize("job", ["contract"], indirect=True)
def test_the_contract_holds_over_a_network_that_reorders(job: dict[int, tuple[int, str]]) -> None:
    succeeded(job[0], " 0 failed, 0 refused")
    succeeded(job[1])


@pytest.mark.parametrize("job", ["blocked"], indirect=True)
def test_a_port_that_is_blocked_is_named_before_the_first_put(job: dict[int, tuple[int, str]]) -> None:
    for node, (status, output) in job.items():
        assert status != 0 and f"rank {1 - node} is not reached" in output, output
        assert "UDP port 4791" in output and f"10.77.0.{2 - node}" in output, output


@pytest.mark.parametrize("job", ["narrow"], indirect=True)
def test_a_network_of_smaller_packets_than_its_ports_is_named(job: dict[int, tuple[int, str]]) -> None:
    for _, (status, output) in job.items():
        assert status != 0 and "messages of 8 bytes arrive" in output and "GIN_IB_MTU" in output, output


@pytest.mark.parametrize("job", ["link-down"], indirect=True)
def test_a_link_that_goes_down_under_puts(job: dict[int, tuple[int, str]]) -> None:
    told = re.search(r"RemoteError after (\S+) s: rank 0: put to rank 1", job[0][1])
    assert job[0][0] == 0 and told and float(told[1]) < 60, job
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


# -- every case of the contract ---------------------------------------------------------------------------------------

ALL = tuple(case.name for case in select() if case.name != LARGE)
NETWORKS = ["", "loss 1%", "loss 5%", "delay 2ms", "delay 1ms reorder 5%", "duplicate 5%"]
long = pytest.mark.skipif(VM != "long", reason="GIN_TEST_VM=long runs every case")


@long
@pytest.mark.parametrize("ranks", ["2", "3", "4"])
def test_every_case_on_one_machine(machines: Machines, ranks: str) -> None:
    machines.cases(*ALL, ranks=ranks)
    script = f"bash {PROGRAMS / 'contract.sh'} {sys.executable} {ranks} {shlex.join(ALL)}"
    found = Jobs(machines.run(script, "-m", "4096", seconds=3600))
    succeeded(found["contract"], " 0 failed, 0 refused")


@long
@pytest.mark.parametrize("network", NETWORKS, ids=lambda text: text or "whole")
def test_every_case_between_two_machines(machines: Machines, network: str) -> None:
    chosen = [name for name in ALL if not network or name.partition(".")[0] in FAMILIES]
    machines.cases(*ALL, ranks="2")
    script = f"bash {PROGRAMS / 'contract.sh'} {sys.executable} {shlex.join([network, *chosen])}"
    output = machines.run(script, "-n", "2", "-m", "3072", seconds=3600)
    found = both(output).get("contract", {})
    assert set(found) == {0, 1}, f"the job did not end on both machines: {output[-8000:]}"
    succeeded(found[0], " 0 failed, [01] refused")  # one opens a communicator whose route no other machine has
    succeeded(found[1])
