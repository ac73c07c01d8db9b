"""After a failure: collective calls among those that are left, and the job opened again with a restarted rank."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meeting import close_stores, new_address, open_stores, settings_for, together

from gin.errors import BootstrapError, RemoteError
from gin.rendezvous import join
from gin.rendezvous.store import Store

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("bare_environment")]

Stores = Callable[..., list[Store]]


def vanish(store: Any) -> None:
    """The store's process dies, as far as the others can see."""
    store._connection.shutdown(2)


def test_calls_go_on_among_the_others(stores: Stores) -> None:
    opened = stores(4, on_peer_failure="peer")
    heard: list[tuple[int, int]] = []
    for store in opened:
        store.on_failure(lambda rank, reason, at=store.rank: heard.append((at, rank)))
    waiting = threading.Thread(target=lambda: together(2, lambda i: opened[2 * i].barrier("slow", group=[0, 2])))
    opened[1].fail("first")
    vanish(opened[3])
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()
    left = together(2, lambda i: opened[2 * i].allgather("among", b"%d" % i, group=[0, 2]))
    assert left == [[b"0", b"1"]] * 2
    for store in (opened[0], opened[2]):
        deadline = time.monotonic() + 5
        while len(store.failures) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RemoteError, match=r"rank 1 .*first; rank 3 .*goodbye") as caught:
            store.barrier("all")
        assert caught.value.record == {"rank": 1, "ranks": [1, 3]}
        with pytest.raises(RemoteError, match="first") as caught:
            store.barrier("with one", group=[0, 1, 2])
        assert caught.value.record == {"rank": 1, "ranks": [1]}
        late: list[int] = []
        store.on_failure(lambda rank, _, into=late: into.append(rank))
        assert late == [1, 3]
    assert sorted(pair for pair in heard if pair[0] in (0, 2)) == [(0, 1), (0, 3), (2, 1), (2, 3)]


def test_a_call_under_way_ends_when_one_that_it_needs_fails(stores: Stores) -> None:
    opened = stores(3, on_peer_failure="peer")
    began = time.monotonic()
    threading.Timer(0.2, opened[1].fail, ("late",)).start()

    def call(rank: int) -> None:
        if rank != 1:
            opened[rank].barrier("all", timeout=20)

    results = together(3, call)
    assert results[1] is None and all(isinstance(results[rank], RemoteError) for rank in (0, 2))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_was_started_again_meets_the_others(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, kind: str, victim: int
) -> None:
    import gin.rendezvous as rendezvous

    address = new_address(kind)
    for turn in range(3):  # it dies twice
        opened = open_stores(3, address)
        assert [store.opening for store in opened] == [turn] * 3
        assert together(3, lambda rank, at=opened: at[rank].allgather("x", b"%d" % rank)) == [[b"0", b"1", b"2"]] * 3
        close_stores(opened)
        # A new process of that rank has counted nothing.
        counts = rendezvous._openings
        for key in [key for key in counts if key[0] == address and key[3] == victim]:
            del counts[key]


def test_it_waits_until_the_others_have_left_the_old_job(nothing_left: None) -> None:
    import gin.rendezvous as rendezvous

    config = settings_for(address := new_address("unix"))
    old = open_stores(3, address)
    vanish(old[1])
    del rendezvous._openings[address, "argument", 3, 1]

    def again(rank: int) -> Any:
        if rank != 1:
            time.sleep(0.5)
            old[rank].close(0.2)
        return join(config, rank=rank, size=3)

    new = together(3, again)
    assert [store.opening for store in new] == [1, 1, 1]
    close_stores(new)
    old[1].close(0.2)


def test_two_processes_of_one_rank_are_still_refused(nothing_left: None) -> None:
    import gin.rendezvous as rendezvous

    config = settings_for(address := new_address("unix"), connect_timeout="2s")
    opened = open_stores(2, address)
    del rendezvous._openings[address, "argument", 2, 1]
    with pytest.raises(BootstrapError, match=r"rank 1 is taken by rank 1 .*two processes have the same rank"):
        join(config, rank=1, size=2)
    close_stores(opened)


PROGRAM = r'''
import os, signal, sys
import gin

SOURCE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void ring(gin::Comm comm, gin::Window box, uint64_t mark) {
  gin::Context net(comm);
  net.put_value((net.rank() + 1) % net.size(), box, 0, mark + net.rank(), gin::signal_inc{0});
  net.wait(gin::thread, 0, net.epoch(0) + 1);
}
"""
first, last, dies_in = map(int, sys.argv[1:])
for turn in range(first, last):
    try:
        with gin.init(timeout="30s") as comm:
            box = comm.window(8)
            ring = comm.compile(SOURCE, "ring")
            comm.barrier()
            if turn == dies_in:
                os.kill(os.getpid(), signal.SIGKILL)
            ring.launch(box, 100 * turn)
            comm.synchronize()
            assert box.read("uint64")[0] == 100 * turn + (comm.rank - 1) % comm.size
            comm.barrier()
            print("turn", turn, "went well", flush=True)
    except (gin.RemoteError, gin.TimeoutError) as error:
        print("turn", turn, type(error).__name__, flush=True)
'''


@pytest.mark.parametrize("mode", ["job", "peer"])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_job_is_opened_again_with_a_restarted_rank(tmp_path: Path, mode: str, victim: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('timeout="30s"', 'timeout="3s"') if mode == "peer" else PROGRAM)
    shared = {"GIN_RENDEZVOUS": new_address("tcp"), "GIN_ON_PEER_FAILURE": mode, "GIN_BACKEND": "ibrc_proxy"}

    def start(rank: int, *words: int) -> subprocess.Popen[str]:
        variables = {**os.environ, **shared, "GIN_SIZE": "3", "GIN_RANK": str(rank), "GIN_ROUTE": "native"}
        command = [sys.executable, "-P", str(program), *map(str, words)]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    started = [start(rank, 0, 2, 0 if rank == victim else -1) for rank in range(3)]
    try:
        assert started[victim].wait(60) == -signal.SIGKILL
        started.append(start(victim, 1, 2, -1))  # at once, whatever the others have noticed
        for process in started:
            out, err = process.communicate(timeout=60)
            if process is started[victim]:
                continue
            assert process.returncode == 0, err
            assert re.search("turn 1 went well", out), out + err
            if process is not started[-1]:
                assert re.search("turn 0 (RemoteError|TimeoutError)", out), out + err
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()
