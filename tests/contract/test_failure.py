"""How waits end that are not satisfied, what every rank is told, and that nothing is left behind."""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import signal
import tempfile
import threading
import time

import pytest

import gin
from gin.conformance.wire import faulty

WAIT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wait_for(gin::Comm comm, uint32_t id, uint64_t least) {
  gin::Context(comm, 1).wait(gin::block, id, least);
}
extern "C" __global__ void send(gin::Comm comm, int peer, uint32_t id) {
  gin::Context(comm, 1).signal(peer, gin::signal_inc{id});
}
extern "C" __global__ void meet(gin::Comm comm) { gin::Context(comm).barrier(gin::warp); }
"""


def raised(call):
    """(exception, seconds that the call took)."""
    start = time.monotonic()
    try:
        call()
    except gin.Error as error:
        return error, time.monotonic() - start
    raise AssertionError("no error was raised")


def run(comm, kernel):
    kernel.launch(3, 1)
    comm.synchronize()


class Witnesses:
    """What ranks say of themselves, for when gin.spawn has no results because one of them was killed."""

    def __init__(self, folder):
        self.folder = str(folder)

    def say(self, rank, **facts):
        with open(os.path.join(self.folder, f"{rank}.part"), "w") as file:
            json.dump({"pid": os.getpid(), "time": time.monotonic()} | facts, file)
        os.replace(file.name, os.path.join(self.folder, f"{rank}.json"))

    def heard(self):
        found = {}
        for name in os.listdir(self.folder):
            if name.endswith(".json"):
                with open(os.path.join(self.folder, name)) as file:
                    found[int(name[:-5])] = json.load(file)
        return found


@pytest.fixture
def clean(nothing_left, monkeypatch, tmp_path_factory):
    """Fails when a test leaves threads, descriptors, shared memory or temporary files."""
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    shared = set(os.listdir("/dev/shm"))
    yield
    assert not os.listdir(scratch)
    # Other jobs of this machine may come and go; nothing of ours may stay.
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "gin" in name}


def gone(pid):
    """Whether a process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_missing_signal_ends_in_a_story_on_every_rank(world, clean):
    backend, route = world.backend, world.route

    def rank_main():
        comm = gin.init(backend=backend, route=route, timeout="20s" if os.environ["GIN_RANK"] != "1" else "400ms")
        wait_for, send = comm.compile(WAIT, "wait_for"), comm.compile(WAIT, "send")
        comm.barrier()
        if comm.rank == 0:
            send.launch(1, 7)
        wait_for.launch(7, 2, block=64)
        error, seconds = raised(comm.synchronize)
        # From now on the same comes at once from everything.
        later = [
            lambda: wait_for.launch(7, 1), comm.synchronize, comm.barrier, lambda: comm.window(8),
            lambda: send.launch(0, 0),
        ]  # fmt: skip
        again = [raised(call) for call in later]
        assert all(type(e) is type(error) and str(e) == str(error) and s < 1 for e, s in again), again
        start = time.monotonic()
        comm.close()
        return type(error).__name__, str(error), error.record, seconds, time.monotonic() - start

    results = gin.spawn(3, rank_main, timeout=60)
    name, text, record, seconds, closing = results[1]
    assert name == "TimeoutError" and 0.4 <= seconds < 10 and closing < 5
    wanted = {"rank": 1, "operation": "wait", "context": 1, "id": 7, "expected": 2, "seen": 1}
    assert {key: record[key] for key in wanted} == wanted
    assert "rank 1: wait on signal 7" in text and "expected at least 2, seen 1" in text and "0.4s" in text
    assert "GIN_TIMEOUT" in text and "wait_for" in text
    assert "thread 0 waiting in wait on signal 7 to reach 2" in text and "threads 1-63 at __syncthreads" in text
    for rank in (0, 2):
        name, text, record, seconds, closing = results[rank]
        assert name == "RemoteError" and text.startswith("rank 1 failed") and record["peer"] == 1
        assert "wait on signal 7" in text  # the reason travels
        assert seconds < 10 and closing < 5


@pytest.mark.parametrize("timeout", ["0", "60s"])
def test_a_rank_killed_in_the_middle_of_a_wait_ends_the_waits_of_the_others(world, clean, tmp_path, timeout):
    backend, route, witnesses = world.backend, world.route, Witnesses(tmp_path)

    def rank_main():
        comm = gin.init(backend=backend, route=route, timeout=timeout)
        what = comm.compile(WAIT, "meet" if comm.rank == 0 else "wait_for")
        what.launch(*(() if comm.rank == 0 else (5, 1)), block=32)
        comm.barrier()
        if comm.rank == 2:
            time.sleep(0.5)  # in the middle of its kernel's wait, and of the others'
            witnesses.say(2)
            os.kill(os.getpid(), signal.SIGKILL)
        error, _ = raised(comm.synchronize)
        heard = time.monotonic()
        again, seconds = raised(lambda: what.launch(*(() if comm.rank == 0 else (5, 1))))
        comm.close()
        witnesses.say(
            comm.rank, error=type(error).__name__, text=str(error), heard=heard, closed=time.monotonic(),
            same=str(again) == str(error) and seconds < 1,
        )  # fmt: skip

    with pytest.raises(gin.RemoteError, match="rank 2 of 3 was killed by SIGKILL"):
        gin.spawn(3, rank_main, timeout=50)
    heard = witnesses.heard()
    assert set(heard) == {0, 1, 2}, heard
    for rank in (0, 1):
        found = heard[rank]
        assert found["error"] == "RemoteError" and found["text"].startswith("rank 2 failed"), found
        assert found["heard"] - heard[2]["time"] < 5 and found["closed"] - found["heard"] < 5 and found["same"]
    assert all(gone(found["pid"]) for found in heard.values())


def test_a_rank_that_raises_between_launches_is_named_to_the_others(world, clean):
    def body(comm):
        comm.compile(WAIT, "meet").launch()
        comm.synchronize()
        if comm.rank == 1:
            raise LookupError("the user's own mistake")
        kernel = comm.compile(WAIT, "wait_for")
        error, seconds = raised(lambda: (kernel.launch(0, 1), comm.synchronize()))
        assert isinstance(error, gin.RemoteError) and seconds < 10
        assert re.search(r"rank 1 failed \(.*\): LookupError: the user's own mistake", str(error))
        raise error

    with pytest.raises(LookupError, match="the user's own mistake") as caught:
        world.run(3, body)
    notes = " ".join(caught.value.__notes__)
    assert "rank 0 of 3 also failed: RemoteError" in notes and "rank 2 of 3 also failed: RemoteError" in notes


PUTS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void send_puts(gin::Comm comm, gin::Window dst, gin::Window src, int count) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size();
  for (int i = 0; i < count; ++i) net.put(gin::block, right, dst, 8 * i, src, 8 * i, 8, gin::signal_inc{2});
  net.flush(gin::block);
  net.barrier(gin::block);
}
"""


@pytest.mark.parametrize("fault", ["fail_at", "fail_peer"])
def test_an_error_completion_is_an_error_with_peer_and_cause_on_every_rank(world, clean, fault):
    if world.route == "direct":
        pytest.skip("nothing goes over the wire")
    backend, route = world.backend, world.route

    def rank_main():
        broken = {fault: 2 if fault == "fail_peer" else 5, "fail_detail": 77} if os.environ["GIN_RANK"] == "1" else {}
        with faulty(broken), gin.init(backend=backend, route=route, timeout="20s", heap="1M") as comm:
            dst, src = comm.window(160), comm.window(160)
            kernel = comm.compile(PUTS, "send_puts")
            error, seconds = raised(lambda: (kernel.launch(dst, src, 20, block=32), comm.synchronize(), comm.barrier()))
            return type(error).__name__, str(error), error.record, seconds

    results = gin.spawn(3, rank_main, timeout=60)
    name, text, record, seconds = results[1]
    assert name == "RemoteError" and "77" in text and "rank 2" in text and record["detail"] == 77, results
    assert record["peer"] == 2 and record["operation"] == "put", results
    assert record["context"] == (0 if backend == "nvshmem" else 1), results  # NVSHMEM has no contexts
    for rank in (0, 2):
        name, text, _, seconds = results[rank]
        assert name == "RemoteError" and "rank 1" in text and "77" in text and seconds < 10, results


def census():
    """What this process has: descriptors, threads, segments."""
    from gin import _core

    gc.collect()
    return (
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(os.listdir("/proc/self/task")),
        (_core.live_segments()),
    )


def no_more_than(before):
    """Whether this process has no more than before. Threads that have ended may take a moment to go."""
    deadline = time.monotonic() + 5
    while True:
        found = census()
        if all(now <= then for now, then in zip(found, before, strict=True)):
            return True
        assert time.monotonic() < deadline, (found, before)
        time.sleep(0.05)


def test_thirty_communicators_leave_nothing_in_the_process(world, clean):
    backend, route = world.backend, world.route

    def rank_main():
        before = None
        for turn in range(31):
            comm = gin.init(backend=backend, route=route, heap="1M")
            window = comm.window(1000 + comm.rank)
            comm.compile(WAIT, "meet").launch()
            comm.synchronize()
            assert window.array().size == 1000 + comm.rank
            comm.close()
            del comm, window
            if turn == 0:
                before = census()
                assert before[3] == 0
        assert no_more_than(before)
        return before

    gin.spawn(2, rank_main, timeout=60)


def test_failed_communicators_leave_nothing_in_the_process_either(world, clean):
    backend, route = world.backend, world.route

    def rank_main():
        before = None
        for turn in range(6):
            comm = gin.init(backend=backend, route=route, heap="1M", timeout="100ms" if turn % 2 else "20s")
            window = comm.window(4096)
            if turn == 0:
                comm.compile(WAIT, "meet").launch()
                comm.synchronize()
            elif turn % 2 == 1:
                comm.compile(WAIT, "wait_for").launch(3, 1, grid=3, block=96)
                raised(comm.synchronize)
            elif comm.rank == 0:
                kernel = comm.compile(WAIT, "wait_for")
                raised(functools.partial(run, comm, kernel))
                del kernel
            else:
                comm.compile(WAIT, "wait_for").launch(3, 1)
                comm.__exit__(LookupError, LookupError("gives up"), None)
            assert window.array().size == 4096
            comm.close()
            comm.close()  # again is nothing
            del comm, window
            if turn == 0:
                before = census()
        assert no_more_than(before)
        return before[3]

    assert gin.spawn(2, rank_main, timeout=60) == [0, 0]


STEPS = {
    "agreement": "gin.comm.check_agreement",
    "platform": "gin.comm.open_platform",
    "backend": "gin.comm.backends.load",
    "segment": "gin._core.Segment",
    "region": "gin._core.Fabric",
    "pod": "gin.comm.Comm._require_route",
}


def test_an_init_that_fails_at_any_step_is_undone_and_told(world, clean):
    backend, route = world.backend, world.route

    def rank_main():
        from unittest import mock

        from gin import _core

        def broken(*_args, **_kwargs):
            raise gin.OutOfMemoryError("made up for the test")

        gin.init(backend=backend, route=route, heap="1M").close()
        before = census()
        steps = [*STEPS.values(), "gin._core.Proxy" if backend == "ibrc_proxy" else "gin._core.Fabric"]
        for step in steps:
            if os.environ["GIN_RANK"] == "1":
                with mock.patch(step, broken):
                    error, seconds = raised(lambda: gin.init(backend=backend, route=route, heap="1M"))
                assert isinstance(error, gin.OutOfMemoryError) and "made up" in str(error), (step, error)
            else:
                error, seconds = raised(lambda: gin.init(backend=backend, route=route, heap="1M"))
                assert isinstance(error, gin.RemoteError) and "rank 1" in str(error), (step, error)
                assert "made up for the test" in str(error), (step, error)
            assert seconds < 10
            del error
            assert no_more_than(before), step
        with gin.init(backend=backend, route=route, heap="1M") as comm:
            comm.compile(WAIT, "meet").launch()
            comm.synchronize()
        return _core.live_segments()

    gin.spawn(2, rank_main, timeout=90)


def test_a_process_ends_though_its_communicator_was_not_closed(world, clean):
    backend, route = world.backend, world.route

    def rank_main(waiting):
        comm = gin.init(backend=backend, route=route, timeout="60s")
        comm.window(64)
        comm.compile(WAIT, "meet").launch()
        comm.synchronize()
        if waiting:
            comm.compile(WAIT, "wait_for").launch(1, 1, block=64)
        globals()["kept"] = comm
        comm.barrier()
        return os.getpid()

    for waiting in (False, True):
        start = time.monotonic()
        pids = gin.spawn(2, rank_main, waiting, timeout=60)
        assert time.monotonic() - start < 12
        assert all(gone(pid) for pid in pids)
