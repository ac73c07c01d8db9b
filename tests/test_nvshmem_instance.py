"""Communicators of one process share NVSHMEM, or are refused by name."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gin
from gin.backends import device_memory
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
    for module in (device_memory, whole):
        monkeypatch.setattr(module, "end_at_once", lambda: called.append(True))
    return called


def test_it_is_closed_with_the_process_within_a_bound(at_once):
    ended = []
    Instance().end(lambda: ended.append("finalize"), lambda: ended.append("enter"))
    assert ended == ["enter", "finalize"]
    start = time.monotonic()
    assert not at_once
    Instance().end(lambda: time.sleep(20), lambda: None)  # the others go on
    assert time.monotonic() - start < 10 and at_once


LIBRARY = r"""
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
extern "C" {
int finalized, wait_in_malloc;
void leave_badly(const char* path) {
  atexit([] { for (;;) sleep(1); });
  fputs("buffered", fopen(path, "w"));
}
void* nvshmem_malloc(unsigned long) {
  while (wait_in_malloc > 0) sleep(1);
  return (void*)0x7f1234567000;
}
void nvshmemx_hostlib_finalize() {
  ++finalized;
  while (wait_in_malloc >= 0) sleep(1);
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """NVSHMEM whose other ranks do not come: to its end unless `wait_in_malloc` is -1, to an allocation if it is 1."""
    source = tmp_path_factory.mktemp("nvshmem") / "waiting.cpp"
    source.write_text(LIBRARY)
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", source.with_suffix(".so")], check=True, timeout=60)
    return source.with_suffix(".so")


ENDING = """
import atexit, ctypes, signal, sys
import gin
from gin.backends.device_memory import within
from gin.backends.nvshmem.instance import Instance
from gin.backends.nvshmem.collective import Collective
path, file, left = sys.argv[1:]
instance, calls = Instance(), Collective(path)
ctypes.CDLL(path).leave_badly(file.encode())
atexit.register(instance.end, calls.finalize, lambda: None)
if left != "end":
    ctypes.c_int.in_dll(ctypes.CDLL(path), "wait_in_malloc").value = 1
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5 if left == "interrupted" else 0)
    try:
        within(60 if left == "interrupted" else 0.2, "nvshmem heap", lambda: calls.malloc(8), lambda: None)
    except (gin.TimeoutError, KeyboardInterrupt):
        instance.unusable = True
sys.exit(7)
"""


@pytest.mark.parametrize("left", ["end", "allocation", "interrupted"])
def test_a_process_ends_with_its_status_while_the_library_waits_for_others(library, tmp_path, left):
    if left == "end" and (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 2):
        pytest.skip("this Python starts no threads at the end, so that NVSHMEM is not closed")
    command = [sys.executable, "-P", "-c", ENDING, library, tmp_path / "buffered", left]
    done = subprocess.run(command, timeout=30, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "buffered").read_text() == "buffered"


def test_while_the_library_waits_for_others_the_process_goes_on(library, at_once, monkeypatch):
    called = []
    monkeypatch.setattr(atexit, "register", lambda *call: called.append(call))
    start = time.monotonic()
    waiting = Collective(library)
    Instance().end(waiting.finalize, lambda: None)
    assert time.monotonic() - start < 10 and at_once
    job = SimpleNamespace(
        config=Config.from_sources(heap="8M", connect_timeout="0.5s"), platform=SimpleNamespace(gpu=Gpu())
    )
    backend = cuda.Backend(job)
    backend._instance, backend._collective = Instance(), waiting
    ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "wait_in_malloc").value = 1
    with pytest.raises(gin.TimeoutError, match=r"nvshmem heap took more than 0\.5 s"):
        backend._allocate(None)
    assert time.monotonic() - start < 10
    with pytest.raises(gin.UnsupportedError, match="new process"):
        backend._instance.offer("gpu 0")
    backend._instance.end(lambda: pytest.fail("it does not come back"), lambda: None)
    at_once.clear()
    for ended, *of in called:  # at the end of the process, while threads are left in the library
        ended(*of)
    assert len(at_once) == len(called) == 2
    ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "wait_in_malloc").value = -1
    while at_once and time.monotonic() - start < 20:
        at_once.clear()
        time.sleep(0.2)
        for ended, *of in called:
            ended(*of)
    assert not at_once  # they have come back


def test_it_is_opened_by_its_own_library_and_closed_with_the_process(library, monkeypatch):
    asked, registered = [], []

    class Nvshmem:
        def get_unique_id(self, empty=False):
            return SimpleNamespace(_data=np.zeros(128, np.uint8))

        def init(self, **how):
            asked.append(how)

        def finalize(self):
            pytest.fail("it keeps Python's lock")

    class Exchange:
        def gather(self, _what, make):
            return [make()]

        def agree(self, _what, make):
            make()

    class Far(Exception):
        pass

    def cut(*_):
        raise Far

    numbers = ctypes.CDLL(str(library))
    ctypes.c_int.in_dll(numbers, "wait_in_malloc").value = 0
    gpu = SimpleNamespace(uuid="gpu 0", ordinal=0, enter=lambda: None, fill=lambda *_: None)
    job = SimpleNamespace(
        config=Config.from_sources(heap="8M"),
        exchange=Exchange(),
        rank=0,
        size=1,
        control_bytes=64,
        platform=SimpleNamespace(gpu=gpu),
    )
    packages = {"nvshmem.core": Nvshmem(), "nvshmem.bindings": SimpleNamespace(ptr=lambda base, rank: base)}
    for name in ("NVSHMEM_DISABLE_NCCL", "NVSHMEM_SYMMETRIC_SIZE"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("NVSHMEM_SYMMETRIC_SIZE")
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda _: SimpleNamespace(set_current=bool)))
    monkeypatch.setattr(cuda, "preload", lambda *_: None)
    monkeypatch.setattr(cuda, "library", packages.__getitem__)
    monkeypatch.setattr(cuda, "loaded_library", {"libnvshmem_host.so": library}.__getitem__)
    monkeypatch.setattr(cuda.Backend, "_cut", cut)
    monkeypatch.setattr(cuda.Backend, "_instance", Instance())
    monkeypatch.setattr(atexit, "register", lambda *call: registered.append(call))
    backend = cuda.Backend(job)
    with pytest.raises(Far):
        backend.open()
    assert backend._base == 0x7F1234567000 and len(asked) == 1 and not backend._instance.unusable
    ctypes.c_int.in_dll(numbers, "wait_in_malloc").value = -1
    before = ctypes.c_int.in_dll(numbers, "finalized").value
    for call, *of in registered:
        call(*of)
    assert ctypes.c_int.in_dll(numbers, "finalized").value == before + 1


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
