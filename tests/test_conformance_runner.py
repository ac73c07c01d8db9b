"""The runner of the conformance suite: what it makes of cases that fail, hang, die, or are not refused."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import running

import gin
from gin.conformance import Case, Plan, World, all_cases, case, run, select
from gin.conformance.registry import FAMILIES
from gin.conformance.results import FAIL, PASS, REFUSED, SKIPPED, Result
from gin.conformance.table import render

PLAIN = '#include <gin/gin.cuh>\nextern "C" __global__ void plain(gin::Comm comm) {}\n'
SPIN = """#include <gin/gin.cuh>
extern "C" __global__ void spin(gin::Comm comm, volatile int* word) { while (*word == 0) {} }
"""


def results(cases, backend="ibrc_proxy", **more) -> dict[str, Result]:
    plan = Plan(cases, (backend,), ("direct",), settings={"heap": "1M"}, **more)
    return {result.case: result for result in run(plan)}


class Book:
    """Cases of a test."""

    def __init__(self):
        self.cases: dict[str, Case] = {}

    def add(self, name, function, **more):
        case(name, promise="of the test", registry=self.cases, **{"ranks": (2,)} | more)(function)
        return self

    def run(self, **more):
        return results(list(self.cases.values()), **more)


def good(world: World) -> None:
    world.check(True, "never told")


def test_a_case_that_fails_on_one_rank_is_told_and_the_rest_goes_on():
    def wrong(world):
        if world.rank == 1:
            world.equal([1, 2, 3], [1, 7, 3], "the numbers")
            world.check(False, "another thing")

    def raises(world):
        if world.rank == 1:
            raise LookupError("made for the test")
        world.barrier()

    found = Book().add("a.good", good).add("b.wrong", wrong).add("c.raises", raises).add("d.good", good).run()
    assert [found[name].outcome for name in ("a.good", "d.good")] == [PASS, PASS]
    assert found["b.wrong"].outcome == FAIL
    assert found["b.wrong"].reason == "rank 1: the numbers: 2, not 7 at 1 (1 of 3 are wrong); another thing"
    assert found["c.raises"].outcome == FAIL
    assert found["c.raises"].reason.startswith("rank 1: LookupError: made for the test (test_conformance_runner.py:")


def test_a_case_that_does_not_end_is_ended_and_says_where_it_stood():
    def in_python(world):
        while world.rank == 1:
            time.sleep(0.01)

    def in_a_kernel(world):
        if world.rank == 0:
            word = world.window(4)
            world.run(word, kernel=world.kernel)
        else:
            world.window(4)
            world.barrier()

    def in_the_system(world):
        ctypes.PyDLL(None).usleep(100_000_000)  # never gives the interpreter back

    book = Book().add("a.python", in_python, seconds=3).add("b.kernel", in_a_kernel, kernel=(SPIN, "spin"), seconds=3)
    found = book.add("c.system", in_the_system, seconds=3).add("d.good", good).run()
    assert found["d.good"].outcome == PASS
    for name, where in {"a.python": "in_python", "b.kernel": "synchronize", "c.system": "in_the_system"}.items():
        assert found[name].outcome == FAIL and "did not end in time" in found[name].reason, found[name]
        assert where in found[name].reason, found[name]


def test_a_rank_that_dies_fails_its_case_alone():
    def dies(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()

    def leaves(world):
        if world.rank == 0:
            os._exit(3)

    found = Book().add("a.good", good).add("b.dies", dies).add("c.leaves", leaves).add("d.good", good).run()
    assert [found[name].outcome for name in ("a.good", "d.good")] == [PASS, PASS]
    assert found["b.dies"].outcome == FAIL and "rank 1 of 2 was killed by SIGKILL" in found["b.dies"].reason
    assert found["c.leaves"].outcome == FAIL and "rank 0 of 2 exited with code 3" in found["c.leaves"].reason


def test_patience_lengthens_every_deadline():
    def looks(world):
        world.equal(world.comm.config.timeout, 80.0, "the deadline of waits")
        world.equal(world.patience, 4.0, "the patience")
        time.sleep(3)  # longer than the case's own deadline

    book = Book().add("a.slow", looks, seconds=2.0, alone=True)
    patient, late = book.run(patience=4)["a.slow"], book.run()["a.slow"]
    assert patient.outcome == PASS, patient.reason
    assert late.outcome == FAIL and "did not end in time" in late.reason


def test_a_wait_that_ends_at_its_deadline_is_told_with_who_waited():
    source = PLAIN.replace("{}", "{ gin::Context(comm).wait(gin::thread, 3, 1); }")

    def waits(world):
        if world.rank == 1:
            world.run()
        else:
            world.barrier()

    found = Book().add("a.waits", waits, kernel=(source, "plain"), settings={"timeout": "300ms"}).run()
    assert found["a.waits"].outcome == FAIL
    assert "rank 1: TimeoutError: rank 1: wait on signal 3" in found["a.waits"].reason


def test_a_refusal_has_to_be_there_and_to_name_the_capability():
    def not_refused(world):
        world.run()

    def refused(world):
        world.open(require="atomics")

    def refused_for_something_else(world):
        raise gin.UnsupportedError("not on Sundays")

    book = Book().add("a.not_refused", not_refused, kernel=(PLAIN, "plain"), needs=("atomics",))
    book.add("b.refused", refused, needs=("atomics",))
    book.add("c.something_else", refused_for_something_else, needs=("atomics",))
    found = book.run(backend="nccl_gin")
    assert found["a.not_refused"].outcome == FAIL
    assert "not refused, though the backend lacks atomics" in found["a.not_refused"].reason
    assert (found["b.refused"].outcome, found["b.refused"].capability) == (REFUSED, "atomics")
    assert found["c.something_else"].outcome == FAIL and "not on Sundays" in found["c.something_else"].reason


def test_a_capability_that_is_claimed_and_refused_is_a_failure():
    def refuses(world):
        raise gin.UnsupportedError("there are no atomics on this wire")

    def does_not_compile(world):
        world.comm.compile(PLAIN.replace("{}", "{ static_assert(false && sizeof(comm)); }"), "plain")

    book = Book().add("a.refuses", refuses, needs=("atomics",)).add("b.compile", does_not_compile, needs=("quiet",))
    found = book.run()
    assert found["a.refuses"].outcome == FAIL
    assert "the backend claims atomics, but: UnsupportedError: there are no atomics" in found["a.refuses"].reason
    assert (
        found["b.compile"].outcome == FAIL
        and "the backend claims quiet, but: CompileError" in found["b.compile"].reason
    )


def test_an_init_that_does_not_refuse_a_capability_is_a_failure():
    def lying(world):
        import gin.comm

        gin.comm.backends.require = lambda *_: None

    def refused(world):
        raise gin.UnsupportedError("no atomics")

    book = Book().add("a.lying", lying).add("b.refused", refused, needs=("atomics",))
    found = book.run(backend="nccl_gin")
    assert found["b.refused"].outcome == FAIL
    assert "init(require='atomics') is not refused, though the backend lacks it" in found["b.refused"].reason


def test_a_communicator_that_cannot_be_opened_fails_its_cases_alone():
    book = (
        Book()
        .add("a.good", good)
        .add("b.bad", good, settings={"signals": 0})
        .add("c.good", good, settings={"signals": 3})
    )
    found = book.run()
    assert found["b.bad"].outcome == FAIL and "does not open: rank 0: ConfigError" in found["b.bad"].reason
    assert found["a.good"].outcome == found["c.good"].outcome == PASS


def test_one_case_leaves_nothing_to_the_next():
    source = """#include <gin/gin.cuh>
extern "C" __global__ void leave(gin::Comm comm, bool look, gin::Window out) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  if (look) {
    static_cast<uint64_t*>(out.local())[0] = net.read(5) + net.epoch(5) + net.read_counter(1);
  } else {
    net.put(gin::thread, right, out, 0, out, 8, 8, gin::signal_add{5, 9}, gin::counter_inc{1});
    net.wait(gin::thread, 5, 9);
  }
}
"""

    def leaves(world):
        world.run(False, world.window(16))

    def looks(world):
        window = world.window(16)
        world.run(True, window)
        world.equal(window.read("u8"), 0, "what was left")

    kernel = (source, "leave")
    found = Book().add("a.leaves", leaves, kernel=kernel).add("b.looks", looks, kernel=kernel).run()
    assert found["a.leaves"].outcome == found["b.looks"].outcome == PASS, found


def test_results_that_nobody_asks_for_any_more_are_not_waited_for():
    def slow(world):
        time.sleep(0.3)

    book = Book()
    for number in range(50):
        book.add(f"a.slow{number}", slow)
    start = time.monotonic()
    stream = run(Plan(list(book.cases.values()), ("ibrc_proxy",), ("direct",)))
    assert next(stream).outcome == PASS
    stream.close()
    assert time.monotonic() - start < 10


def test_what_does_not_apply_is_told():
    book = Book().add("a.three", good, ranks=(3,), least=3).add("b.native", good, routes=("native",))
    found = book.add("c.cuda", good, platforms=("cuda",)).run(ranks=(2,))
    assert {name: result.outcome for name, result in found.items()} == dict.fromkeys(found, SKIPPED)
    assert found["a.three"].reason == "it is for 3 or more ranks" and "native" in found["b.native"].reason


# -- the registry and the table ---------------------------------------------------------------------------------------


def test_every_case_is_described_and_belongs_to_its_family():
    cases = all_cases()
    assert len(cases) > 80 and list(dict.fromkeys(case.family for case in cases.values())) == list(FAMILIES)
    for found in cases.values():
        assert found.summary and "{" not in found.summary and len(found.summary) < 130, found.name
        assert found.promise and found.least <= min(found.ranks) and max(found.ranks) <= found.most, found.name
        assert found.function.__module__ == f"gin.conformance.cases.{found.family}"
        assert not found.hostile or not (found.alone or found.opens), found.name


def test_cases_are_selected_by_glob_family_name_and_variant():
    every = select()
    assert select(["order"]) == [case for case in every if case.family == "order"]
    assert {case.name for case in select(["*.quiet", "transfer.get"])} == {
        "order.quiet", "transfer.get[flush]", "transfer.get[ticket]",
    }  # fmt: skip
    assert [case.name for case in select(["transfer.get[flush]"])] == ["transfer.get[flush]"]
    with pytest.raises(gin.ConfigError, match=r"nothing.*--list"):
        select(["order", "nothing"])


def test_the_table_shows_the_worst_and_says_why():
    def of(name, backend, outcome, ranks=2, reason="", capability=""):
        return Result(name, "put", backend, "host", "shm", "native", ranks, outcome, reason, capability)

    text = render([
        of("a.one", "nvshmem", PASS), of("a.one", "nvshmem", FAIL, 3, "rank 1: wrong"), of("a.one", "nccl_gin", PASS),
        of("a.two", "nvshmem", PASS), of("a.two", "nccl_gin", REFUSED, 2, "it has none", "atomics"),
        of("a.three", "nvshmem", SKIPPED),
    ])  # fmt: skip
    lines = [line.split() for line in text.splitlines()]
    assert lines[:5] == [
        ["nvshmem", "nccl_gin"], ["case", "native", "native"], ["a.one", "FAIL", "pass"], ["a.two", "pass", "refused"],
        ["a.three", "-", "-"],
    ]  # fmt: skip
    assert "FAIL a.one (nvshmem native, 3 ranks)\n     rank 1: wrong" in text
    assert "refused by nccl_gin native, for want of atomics: a.two\n     it has none" in text
    assert text.endswith("3 passed, 1 failed, 1 refused, 1 do not apply\n")
    assert render([]) == "no cases\n"


# -- the command ------------------------------------------------------------------------------------------------------


def gin_command(*words, launcher=(), **env):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gin", *launcher, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )
    return done.returncode, done.stdout, done.stderr


LAUNCHER = ("run", "-n", "2", "--", sys.executable, "-P", "-m", "gin")
SHORT = ("conformance", "--backend", "nccl_gin,ibrc_proxy", "--route", "direct", "--ranks", "2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_early_keeps_what_it_has(tmp_path, number):
    file = tmp_path / "out.json"
    command = [sys.executable, "-P", "-m", "gin", *SHORT, "-v", "--json", str(file)]
    with running(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        first = process.stderr.readline()
        process.send_signal(number)
        _, told = process.communicate(timeout=90)
    assert first.startswith("pass") and process.returncode == 130
    assert "interrupted: the table has the cases that had ended" in told
    document = json.loads(file.read_text())
    assert not document["complete"] and any(row["outcome"] == PASS for row in document["results"])


def test_the_command_shows_a_table_and_writes_json(tmp_path):
    file = tmp_path / "out.json"
    words = ("--case", "signal.several", "--case", "refusal.atomics*", "--json", str(file))
    status, out, err = gin_command(*SHORT, *words)
    assert status == 0, err
    assert out.splitlines()[2].split() == ["signal.several", "pass", "pass"]
    assert out.splitlines()[3].split() == ["refusal.atomics_out_of_range", "refused", "pass"]
    assert "nccl_gin direct, 2 ranks: 1 pass, 1 refused" in err
    document = json.loads(file.read_text())
    assert document["complete"] and document["emulated"] and document["schema"] == 1
    rows = {(row["case"], row["backend"]): row for row in document["results"]}
    assert rows["refusal.atomics_out_of_range", "nccl_gin"]["capability"] == "atomics"
    assert (
        rows["signal.several", "ibrc_proxy"]["outcome"] == "pass" and rows["signal.several", "ibrc_proxy"]["ranks"] == 2
    )
    assert gin_command(*SHORT, *words)[0] == 2  # the file exists
    status, out, _ = gin_command(*SHORT, "--case", "signal.several", "--json", "-")
    assert status == 0 and json.loads(out)["results"][0]["case"] == "signal.several"


def test_the_command_is_a_rank_under_a_launcher():
    words = [word for word in SHORT if word not in ("--ranks", "2")]
    status, out, err = gin_command(*words, "--case", "signal.several", launcher=LAUNCHER)
    assert status == 0 and out.splitlines()[2].split() == ["signal.several", "pass", "pass"], err
    assert out.count("signal.several") == 1
    status, _, err = gin_command(*words, "--case", "signal.several", "--ranks", "3", launcher=LAUNCHER)
    assert status == 2 and "--ranks" in err


def test_the_command_fails_when_a_case_does_and_says_when_nothing_can_run():
    words = ("--case", "visibility.group[warp]", "--check")
    status, out, _ = gin_command(*SHORT, *words, GIN_CONTEXTS="1")  # the case uses the second
    assert status == 1 and out.count("FAIL visibility.group[warp]") == 2 and "out of range" in out
    status, out, _ = gin_command(*SHORT, "--case", "transfer.registered*")
    assert status == 3 and "0 passed, 0 failed, 0 refused" in out


def test_without_a_gpu_everything_is_refused_and_the_command_says_that_nothing_ran():
    command = [
        sys.executable,
        "-P",
        "-m",
        "gin",
        "conformance",
        "--platform",
        "cuda",
        "--ranks",
        "2",
        "--backend",
        "ibrc_proxy",
    ]
    command += [
        "--case",
        "comm.ranks_that_disagree",
        "--case",
        "transfer.every_peer",
        "--case",
        "refusal.atomics_out_of_range",
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 3 and "0 failed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "nvsmem"), "nvsmem"), (("--route", "fast"), "fast"), (("--ranks", "0"), "1 to 4096"),
        (("--ranks", "two"), "1 to 4096"), (("--case", "nothing*"), "--list"), (("--platform", "gpu"), "gpu"),
        (("--json", "/nowhere/x.json"), "cannot write"),
    ],
)  # fmt: skip
def test_what_the_command_does_not_understand_is_told(words, message):
    status, _, err = gin_command("conformance", *words)
    assert status == 2 and message in err


def test_the_list_names_every_case():
    status, out, _ = gin_command("conformance", "--list")
    assert status == 0 and [line.split("  ")[0].strip() for line in out.splitlines()] == list(all_cases())
