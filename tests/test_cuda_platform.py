"""The cuda platform's own accounts, on a driver that only notes what it is asked."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import gin
from gin import _core
from gin.backends.device_memory import array_span
from gin.backends.nccl_gin import cuda as nccl
from gin.platforms import cuda, cuda_memory, cuda_peers
from gin.platforms.cuda import CudaModule, CudaPlatform
from gin.platforms.cuda_memory import Gpu

HERE = {"host": "here", "uuid": "mine", "bus": "0000:01:00.0"}


class Driver:
    """Answers success and a number of its own; `running` streams and events have not ended."""

    def __init__(self) -> None:
        self.made, self.gone, self.running, self.numbers = 0, list[int](), set[int](), dict[int, int]()

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __getattr__(self, name: str) -> Any:
        if name[:2] != "cu":
            return SimpleNamespace(**{name: 0}) if name != "CUfunction_attribute" else SimpleNamespace()
        return lambda *_: (0, 0)

    def cuEventCreate(self, flags: int) -> tuple[int, int]:  # noqa: N802
        self.made += 1
        return 0, self.made

    def cuEventDestroy(self, event: int) -> tuple[int]:  # noqa: N802
        self.gone.append(event)
        return (0,)

    def cuStreamDestroy(self, stream: int) -> tuple[int]:  # noqa: N802
        self.gone.append(stream)
        return (0,)

    def cuStreamQuery(self, stream: int) -> tuple[int]:  # noqa: N802
        return (600 if stream in self.running else 0,)

    cuEventQuery = cuStreamQuery  # noqa: N815

    def cuStreamGetId(self, stream: int) -> tuple[int, int]:  # noqa: N802
        return 0, self.numbers.get(stream, stream)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *_: Any) -> tuple[int, int]:  # noqa: N802
        return 0, 2


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Any:
    driver = Driver()
    for module in (cuda, cuda_memory):
        monkeypatch.setattr(module, "driver", lambda: driver)
    gpu: Any = Gpu.__new__(Gpu)
    gpu.multiprocessors, gpu.context, gpu.set_word = 10, None, lambda *_: None
    made: Any = CudaPlatform.__new__(CudaPlatform)
    vars(made).update(
        gpu=gpu, driver=driver, _ends={}, _stream=100, _arrays_done=101, _modules=[], _closed=False, _over=False
    )
    made._ends_lock = threading.Lock()
    vars(made).update(_lost=None, _launched="k", _sharers=1)
    made.words = lambda: {"failed": 0}
    record = ctypes.create_string_buffer(_core.record_bytes)
    made._record = SimpleNamespace(address=ctypes.addressof(record), memory=record)
    return made


def test_a_stream_has_one_event_however_often_it_is_launched_on(platform):
    platform.driver.running |= {1, 2}  # the events' numbers
    for stream in (7, 8, 7, 7, 8):
        platform._mark_end(stream)
    assert platform.driver.made == 2 and len(platform._queries()) == 3


def test_an_answer_that_says_nothing_of_the_gpu_is_not_the_end_of_it(platform):
    platform.driver.cuStreamQuery = lambda stream: (900,)  # another thread captures, and the question is not allowed
    with pytest.raises(gin.Error, match="kernel k"):
        platform._ended()
    platform.driver.cuStreamQuery = lambda stream: (0,)
    assert platform._ended() and not platform.lost
    platform.driver.cuStreamQuery = lambda stream: (700,)
    for _ in range(2):
        with pytest.raises(gin.KernelError, match="broke the GPU's context"):
            platform._ended()
    assert platform.lost


def test_one_thread_launches_while_another_waits(platform):
    platform.driver.running |= set(range(1, 10**6))

    def launch():
        for stream in range(7, 1007):
            platform._mark_end(stream)

    launches = threading.Thread(target=launch)
    launches.start()
    while launches.is_alive():
        assert not platform._ended()
    launches.join()
    assert len(platform._queries()) == 1001


def test_a_streams_handle_that_comes_again_is_another_streams(platform):
    platform.driver.running.add(1)
    platform._mark_end(7)
    platform.driver.numbers[7] = 70  # destroyed while its launch ran, and made anew
    platform._mark_end(7)
    assert platform.driver.made == 2 and not platform._ended()


def test_events_of_streams_whose_launches_have_ended_are_given_back(platform):
    for stream in range(7, 30):
        platform._mark_end(stream)
    assert platform.driver.made == 23 and len(platform._ends) == 1 and len(platform.driver.gone) == 22


def test_what_launches_needed_is_given_back_at_the_end(platform):
    platform._mark_end(7)
    platform.close(1.0)
    platform.close(1.0)
    assert sorted(platform.driver.gone) == [1, 100, 101] and platform.idle and not platform.gpu.stuck


def test_a_kernel_that_does_not_end_keeps_what_freeing_would_wait_for(platform, monkeypatch):
    monkeypatch.setattr(cuda, "AFTER_FAILURE_SECONDS", 0.01)
    platform.driver.running.add(100)
    with pytest.raises(gin.TimeoutError, match="still running"):
        platform.close(0.01)
    assert platform.gpu.stuck and not platform.idle and platform.driver.gone == []
    platform.driver.running.clear()
    assert not platform.gpu.stuck


def test_what_launches_needed_is_given_back_where_they_end_after_all(platform):
    platform.driver.running.add(100)
    platform.gpu.set_word = lambda *_: platform.driver.running.clear()
    with pytest.raises(gin.TimeoutError, match="still running"):
        platform.close(0.01)
    assert sorted(platform.driver.gone) == [100, 101] and platform.idle and not platform.gpu.stuck


def test_ranks_that_share_a_gpu_share_its_multiprocessors(platform):
    module = CudaModule([("comm", 8, 8)], None, None, 1024)
    assert platform._check_shape(module, "k", (20, 1, 1), (32, 1, 1), 0)
    platform._sharers = 3
    assert platform._check_shape(module, "k", (6, 1, 1), (32, 1, 1), 0)
    with pytest.raises(gin.ArgumentError, match=r"7 blocks .*holds 6 .*shared by 3 ranks"):
        platform._check_shape(module, "k", (7, 1, 1), (32, 1, 1), 0)
    alone = CudaModule([("unsigned", 8, 8)], None, None, 1024)
    assert not platform._check_shape(alone, "k", (7, 1, 1), (32, 1, 1), 0)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        ((1, 70000, 1), (32, 1, 1), 0, r"grid=\(1, 70000, 1\).*at most \(2147483647, 65535, 65535\)"),
        ((1, 1, 1), (1, 1, 65), 0, r"block=\(1, 1, 65\).*at most \(1024, 1024, 64\)"),
        ((1, 1, 1), (32, 1, 1), 1 << 20, "1048576 bytes of shared memory"),
    ],
)
def test_shapes_beyond_cudas_limits_are_errors_of_the_arguments(platform, grid, block, shared, words):
    platform.driver.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    platform.driver.cuFuncSetAttribute = lambda *_: (1,)
    module = CudaModule([("unsigned", 8, 8)], None, None, 1024)
    with pytest.raises(gin.ArgumentError, match=words):
        platform._check_shape(module, "k", grid, block, shared)


@pytest.mark.parametrize(
    ("visible", "answer", "far"), [(True, 0, {1}), (True, 1, set()), (False, 0, {1}), (False, 1, set())]
)
def test_gpus_that_atomics_do_not_reach(monkeypatch, visible, answer, far):
    driver = SimpleNamespace(CUdevice_P2PAttribute=SimpleNamespace(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED=3))
    driver.cuDeviceGetByPCIBusId = lambda bus: (0, 5) if visible else (101, None)
    driver.cuDeviceGetP2PAttribute = lambda which, one, other: (0, answer)
    monkeypatch.setattr(cuda_peers, "driver", lambda: driver)
    monkeypatch.setattr(cuda_peers, "nvml_status", lambda one, other, index: bool(answer))
    gpu: Any = SimpleNamespace(uuid="mine", handle=4, bus_id=HERE["bus"])
    rows = [HERE, {**HERE, "uuid": "near", "bus": "0000:02:00.0"}, HERE, {**HERE, "host": "there", "uuid": "far"}]
    assert cuda_peers.without_atomics(gpu, rows) == far
    monkeypatch.setattr(cuda_peers, "nvml_status", lambda *_: None)
    if not visible:
        assert cuda_peers.without_atomics(gpu, rows) == set()  # nobody can tell


def test_memory_of_another_gpu_is_not_this_ranks(platform, monkeypatch):
    def ordinal(answer: Any, which: int, address: Any) -> int:
        answer._obj.value = address.value // 4096
        return 0 if which == 9 and address.value < 1 << 40 else 1

    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: {"libcuda.so.1": SimpleNamespace(cuPointerGetAttribute=ordinal)}[name]
    )
    platform.gpu.ordinal = 1
    platform.gpu.require_own(4096)
    with pytest.raises(gin.ArgumentError, match="of GPU 2; this rank's is GPU 1"):
        platform.gpu.require_own(8192)
    with pytest.raises(gin.ArgumentError, match="not a GPU's"):
        platform.gpu.require_own(1 << 40)


def test_a_gpu_is_asked_in_its_own_context_whatever_the_thread_used_before(platform, monkeypatch):
    driver, asked = platform.driver, []
    driver.cuCtxSetCurrent = lambda context: (driver.__dict__.update(current=context), (0,))[1]
    for name in (
        "cuStreamCreateWithPriority",
        "cuEventCreate",
        "cuStreamSynchronize",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
        "cuMemsetD8Async",
    ):
        setattr(driver, name, lambda *_, name=name: (asked.append((name, driver.current)), (0, 1))[1])
    monkeypatch.setattr(cuda_memory, "_gpu_at", lambda _: asked.append(("ordinal", driver.current)))
    platform.gpu.context, platform.gpu.copies, platform.gpu.ordinal = "this GPU's", 5, None
    for ask in (
        platform.gpu.stream,
        platform._event,
        platform.arrays_settled,
        lambda: platform.gpu.copy_in(64, bytes(8)),
        lambda: platform.gpu.copy_out(64, 8),
        lambda: platform.gpu.require_own(64),
        lambda: platform.gpu.fill(64, 8),
    ):
        driver.current = "another's"
        ask()
    assert len({name for name, _ in asked}) == 7 and {context for _, context in asked} == {"this GPU's"}


def test_an_array_of_no_bytes_is_refused_by_name():
    array = SimpleNamespace(__cuda_array_interface__={"data": (0, False), "shape": (0, 4), "typestr": "<f4"})
    with pytest.raises(gin.ArgumentError, match="no bytes"):
        array_span(array)


@pytest.mark.parametrize(
    ("failed", "idle", "record", "end"),
    [
        (False, True, None, "destroy"),
        (True, True, None, "abort"),  # the others' part of an orderly end does not come
        (False, False, None, "abort"),
        (False, True, {"code": 1}, "abort"),
    ],
)
def test_nccls_communicator_is_aborted_where_an_orderly_end_would_wait(failed, idle, record, end):
    ended: list[str] = []
    backend: Any = nccl.Backend.__new__(nccl.Backend)
    gpu = SimpleNamespace(enter=lambda: None)
    platform = SimpleNamespace(lost=False, idle=idle, gpu=gpu, read_record=lambda: record)
    backend.job, backend.failed = SimpleNamespace(platform=platform), failed
    backend._comm = SimpleNamespace(abort=lambda: ended.append("abort"), destroy=lambda: ended.append("destroy"))
    backend.close(1.0)
    backend.close(1.0)
    assert ended == [end]
