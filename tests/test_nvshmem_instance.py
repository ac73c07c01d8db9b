"""Communicators of one process share NVSHMEM, or are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import gin
from gin.backends.nvshmem import cuda
from gin.backends.nvshmem import instance as whole
from gin.backends.nvshmem.collective import Collective
from gin.backends.nvshmem.instance import Block, Instance, joins, joint_block
from gin.config import Config


def opened(size: int, token: str = "id", blocks: tuple[Block, ...] = ()) -> list[Instance]:
    ranks = [Instance() for _ in range(size)]
    for rank, instance in enumerate(ranks):
        instance.started(token, rank, size, f"gpu {rank}")
        instance.blocks += [Block(block.address, block.nbytes, block.used) for block in blocks]
    return ranks


def offers(ranks: list[Instance]) -> list[dict]:
    return [instance.offer(f"gpu {number}") for number, instance in enumerate(ranks)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_is_started_once_and_shared_by_the_same_ranks(size):
    assert not joins(offers([Instance() for _ in range(size)]))
    assert joins(offers(opened(size)))


def test_other_ranks_than_it_was_started_by_are_refused_on_all_of_them():
    three = opened(3)
    for wrong in (three[:2], [three[1], three[0], three[2]], [*three, Instance()], [Instance(), *three[1:]]):
        for one, number in zip(wrong, range(len(wrong)), strict=True):
            one.gpu = f"gpu {number}"
        with pytest.raises(gin.UnsupportedError, match="same ranks in the same order"):
            joins(offers(wrong))


def test_ranks_of_two_different_ones_are_refused():
    one, two = opened(2, "one"), opened(2, "two")
    with pytest.raises(gin.UnsupportedError, match="NVSHMEM"):
        joins(offers([one[0], two[1]]))


def test_another_gpu_than_it_was_started_on_is_refused():
    (instance,) = opened(1)
    with pytest.raises(gin.UnsupportedError, match="another GPU"):
        instance.offer("gpu 7")


def test_one_that_did_not_start_is_not_tried_again():
    instance = Instance(unusable=True)
    with pytest.raises(gin.UnsupportedError, match="did not start"):
        instance.offer("gpu 0")
    instance.started("id", 0, 1, "gpu 0")
    assert joins([instance.offer("gpu 0")])


def test_a_block_is_used_again_once_no_rank_uses_it_and_it_is_large_enough():
    blocks = (Block(0, 100, used=False), Block(1000, 200, used=True), Block(2000, 300, used=False))
    ranks = opened(3, blocks=blocks)
    assert joint_block(offers(ranks), 100) == 0
    assert joint_block(offers(ranks), 101) == 2
    assert joint_block(offers(ranks), 301) is None
    ranks[1].blocks[0].used = True
    assert joint_block(offers(ranks), 1) == 2
    ranks[2].blocks[2].used = True
    assert joint_block(offers(ranks), 1) is None


@pytest.fixture
def at_once(monkeypatch):
    """How often a process was to end at once."""
    called = []
    monkeypatch.setattr(whole, "_end_at_once", lambda: called.append(True))
    return called


def test_it_is_closed_with_the_process_within_a_bound(at_once):
    ended = []
    Instance().end(lambda: ended.append("finalize"), lambda: ended.append("enter"))
    assert ended == ["enter", "finalize"]
    start = time.monotonic()
    assert not at_once
    Instance().end(lambda: time.sleep(20), lambda: None)  # the others go on
    assert time.monotonic() - start < 10 and at_once


WAITING = """
#include <cstdlib>
#include <unistd.h>
extern "C" void leave_badly() { atexit([] { for (;;) sleep(1); }); }
extern "C" void* nvshmem_malloc(unsigned long) { for (;;) sleep(1); }
extern "C" void nvshmemx_hostlib_finalize() { for (;;) sleep(1); }
"""


@pytest.fixture
def waiting(tmp_path):
    """NVSHMEM whose other ranks do not come."""
    source, library = tmp_path / "waiting.cpp", tmp_path / "libwaiting.so"
    source.write_text(WAITING)
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return Collective(library)


ENDING = """
import ctypes, sys
from gin.backends.nvshmem.instance import Instance
from gin.backends.nvshmem.collective import Collective
library = ctypes.CDLL(sys.argv[1])
library.leave_badly()
ctypes.CDLL(None).printf(b"printed")
Instance().end(Collective(sys.argv[1]).finalize, lambda: None)
sys.exit(7)
"""


def test_a_process_ends_with_its_status_while_the_library_waits_for_others(waiting, tmp_path):
    command = [sys.executable, "-c", ENDING, tmp_path / "libwaiting.so"]
    done = subprocess.run(command, timeout=30, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"printed"), done.stderr


def test_while_the_library_waits_for_others_the_process_goes_on(waiting, at_once):
    start = time.monotonic()
    Instance().end(waiting.finalize, lambda: None)
    assert time.monotonic() - start < 10 and at_once
    job = SimpleNamespace(
        config=Config.from_sources(heap="8M", connect_timeout="0.5s"), platform=SimpleNamespace(gpu=Gpu())
    )
    backend = cuda.Backend(job)
    backend._instance, backend._collective = Instance(), waiting
    with pytest.raises(gin.TimeoutError, match=r"nvshmem heap took more than 0\.5 s"):
        backend._allocate(None)
    assert time.monotonic() - start < 10
    with pytest.raises(gin.UnsupportedError, match="new process"):
        backend._instance.offer("gpu 0")
    backend._instance.end(lambda: pytest.fail("it does not come back"), lambda: None)


class Gpu:
    def enter(self):
        pass


@pytest.mark.parametrize(("here", "elsewhere", "lost"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_failure_here_or_elsewhere_leaves_it_open(here, elsewhere, lost):
    platform = SimpleNamespace(gpu=Gpu(), lost=bool(lost), read_record=lambda: {} if here else None)
    backend = cuda.Backend(SimpleNamespace(platform=platform))
    backend._instance = Instance()
    if elsewhere:
        backend.peer_failed(1)
    backend.close(1.0)
    assert backend._instance.broken == bool(here or elsewhere or lost)


def test_it_is_not_closed_after_a_failure_or_by_an_error():
    Instance(broken=True).end(lambda: pytest.fail("it is collective"), lambda: None)

    def fail() -> None:
        raise RuntimeError("nvshmem")

    Instance().end(fail, lambda: None)


def test_its_variables_are_set_before_the_unique_id_is_made_which_reads_them(monkeypatch):
    seen = {}

    class Library:
        def get_unique_id(self):
            seen.update(os.environ)
            raise gin.Error("far enough")

    class Exchange:
        def gather(self, _what, make):
            return [make()]

    platform = SimpleNamespace(gpu=SimpleNamespace(uuid="gpu 0"))
    job = SimpleNamespace(
        config=Config.from_sources(heap="8M"), exchange=Exchange(), rank=0, size=1, control_bytes=64, platform=platform
    )
    for name in ("NVSHMEM_DISABLE_NCCL", "NVSHMEM_SYMMETRIC_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(cuda, "preload", lambda *_: None)
    monkeypatch.setattr(cuda, "library", lambda _: Library())
    monkeypatch.setattr(cuda, "loaded_library", lambda _: None)
    monkeypatch.setattr(cuda, "Collective", lambda _: None)
    monkeypatch.setattr(cuda.Backend, "_instance", Instance())
    with pytest.raises(gin.Error, match="far enough"):
        cuda.Backend(job).open()
    assert seen["NVSHMEM_DISABLE_NCCL"] == "1"
    assert int(seen["NVSHMEM_SYMMETRIC_SIZE"]) == (8 << 20) + cuda.SLACK
