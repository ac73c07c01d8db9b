"""What the cuda platform gives back, on a driver that only notes what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gin.errors import UnsupportedError
from gin.platforms import cuda_memory
from gin.platforms.cuda_memory import DeviceMemory, Gpu, PeerMemory, PinnedMemory


class Driver:
    """The thread's context, and the calls that were made in each."""

    def __init__(self) -> None:
        self.context = "theirs"
        self.capture = "global"
        self.calls: list[tuple[str, str, int]] = []

    def cuCtxGetCurrent(self) -> tuple[int, str]:  # noqa: N802 - as the driver calls it
        return 0, self.context

    def cuCtxSetCurrent(self, context: str) -> tuple[int]:  # noqa: N802
        self.context = context
        return (0,)

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")

    def cuThreadExchangeStreamCaptureMode(self, mode: str) -> tuple[int, str]:  # noqa: N802
        before, self.capture = self.capture, mode
        return 0, before

    def __getattr__(self, name: str) -> Any:
        def called(address: int) -> tuple[int]:
            assert self.capture == "relaxed"  # a stream that the thread captures is not disturbed
            self.calls.append((name, self.context, address))
            return (0,)

        return called


@pytest.fixture
def gpu() -> Any:
    made = Gpu.__new__(Gpu)
    made._cu = Driver()
    made.context = "ours"
    return made


def owner(kind: type[Any], gpu: Any, **fields: Any) -> Any:
    made = kind.__new__(kind)
    vars(made).update(_gpu=gpu, **fields)
    return made


@pytest.mark.parametrize(
    ("kind", "fields", "call"),
    [
        (DeviceMemory, {"address": 64}, "cuMemFree"),
        (PeerMemory, {"_base": 64, "address": 80}, "cuIpcCloseMemHandle"),
        (PinnedMemory, {"address": 64, "_registered": False}, "cuMemFreeHost"),
        (PinnedMemory, {"address": 64, "_registered": True}, "cuMemHostUnregister"),
    ],
)
def test_memory_is_given_back_in_its_own_context_and_the_thread_keeps_the_one_it_had(gpu, kind, fields, call):
    memory = owner(kind, gpu, **fields)
    del memory  # as the garbage collector does, between any two lines of a thread that is about to use another GPU
    assert gpu._cu.calls == [(call, "ours", 64)]
    assert gpu._cu.context == "theirs" and gpu._cu.capture == "global"


def test_a_peers_memory_is_unmapped_once(gpu):
    memory = owner(PeerMemory, gpu, _base=64, address=80)
    memory.close()
    memory.close()
    del memory
    assert [call for call, _, _ in gpu._cu.calls] == ["cuIpcCloseMemHandle"]


def test_nothing_is_given_back_when_python_ends(gpu, monkeypatch):
    monkeypatch.setattr(cuda_memory.sys, "is_finalizing", lambda: True)
    memory = owner(DeviceMemory, gpu, address=64)
    del memory
    assert not gpu._cu.calls and gpu._cu.context == "theirs"


def test_nothing_is_given_back_while_a_kernel_does_not_end(gpu):
    running, given = {7}, "what it writes to"
    gpu.leave_unended([(lambda stream: (600 if stream in running else 0,), stream) for stream in (6, 7)])
    before = list(cuda_memory.kept)
    for kind, fields in ((DeviceMemory, {"address": 64}), (PeerMemory, {"_base": 64}), (PinnedMemory, {"address": 64})):
        owner(kind, gpu, _registered=True, _owner=given, **fields)  # what frees it would wait
    assert not gpu._cu.calls and gpu._cu.context == "theirs" and gpu.stuck
    assert [item for item in cuda_memory.kept if item not in before] == [given]
    running.clear()
    owner(DeviceMemory, gpu, address=64)
    assert gpu._cu.calls == [("cuMemFree", "ours", 64)] and not gpu.stuck


def test_pinned_memory_outlives_what_pins_it(gpu):
    order: list[str] = []

    class Owner:
        def __del__(self) -> None:
            order.append("given back")

    gpu._cu.cuMemHostUnregister = lambda address: order.append("unpinned") or (0,)
    holder = SimpleNamespace(memory=Owner())
    holder.pinned = owner(PinnedMemory, gpu, address=64, _registered=True, _owner=holder.memory)
    del holder  # attributes go in the order in which they came
    assert order == ["unpinned", "given back"]


def test_what_was_never_allocated_is_not_given_back(gpu):
    for kind in (DeviceMemory, PeerMemory, PinnedMemory):
        memory = owner(kind, gpu)
        del memory
    assert not gpu._cu.calls


def test_a_package_that_is_missing_is_what_this_machine_cannot_do():
    with pytest.raises(UnsupportedError, match=r"needs the package no\.such\.package.*pip install 'gin\[cuda13\]'"):
        cuda_memory.library("no.such.package")
