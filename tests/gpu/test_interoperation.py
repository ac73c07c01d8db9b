"""Windows as arrays of other libraries, their streams, and CUDA graphs."""

from __future__ import annotations

import numpy as np
import pytest

import gin

SHIFT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void shift(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t bytes) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size();
  const uint64_t before = net.epoch(0);
  net.put(gin::block, right, dst, 0, src, 0, bytes, gin::signal_inc{0});
  net.wait(gin::block, 0, before + 1);
  net.flush(gin::block);
}
"""

pytestmark = [pytest.mark.two_gpus, pytest.mark.timeout(180)]


def test_cupy_and_pytorch_see_a_window_without_a_copy(run):
    torch = pytest.importorskip("torch")

    def body(comm):
        import cupy

        size = 1 << 16
        dst, src = comm.window(4 * size), comm.window(4 * size)
        source = src.array("f4")
        assert isinstance(source, cupy.ndarray) and source.data.ptr == src.address
        source[:] = cupy.arange(size, dtype="f4") + 1000 * comm.rank
        kernel = comm.compile(SHIFT, "shift")
        kernel.launch(dst, src, 4 * size, block=256)  # after what CuPy was asked on the default stream
        comm.synchronize()
        tensor = torch.as_tensor(dst, device=f"cuda:{torch.cuda.current_device()}").view(torch.float32)
        assert tensor.data_ptr() == dst.address
        left = (comm.rank - 1) % comm.size
        assert torch.equal(tensor.cpu(), torch.arange(size, dtype=torch.float32) + 1000 * left)
        same = torch.from_dlpack(dst.array("f4"))
        assert same.data_ptr() == dst.address
        comm.barrier()

    run(2, body)


@pytest.mark.parametrize("maker", ["cupy", "torch", "cuda.core", "handle"])
def test_a_launch_is_ordered_with_the_callers_own_stream(run, backend, maker):
    if maker != "cupy" and backend != "ibrc_proxy":
        pytest.skip("streams are the platform's matter: one backend stands for all")
    if maker == "torch":
        pytest.importorskip("torch")

    def body(comm):
        import cupy

        if maker == "torch":
            import torch

            theirs = torch.cuda.Stream()
            stream = cupy.cuda.ExternalStream(theirs.cuda_stream)
        elif maker == "cuda.core":
            from cuda.core import Device

            device = Device()
            device.set_current()
            theirs = device.create_stream()
            stream = cupy.cuda.ExternalStream(int(theirs.handle))
        else:
            stream = cupy.cuda.Stream(non_blocking=True)
            theirs = stream.ptr if maker == "handle" else stream
        size = 1 << 20
        dst, src = comm.window(4 * size), comm.window(4 * size)
        kernel = comm.compile(SHIFT, "shift")
        source, target = src.array("i4"), dst.array("i4")
        sums = []
        comm.barrier()
        for turn in range(5):
            with stream:
                for _ in range(20):
                    source.fill(turn + comm.rank)
                kernel.launch(dst, src, 4 * size, block=256, stream=theirs)
                total = target.astype("i8").sum()
            comm.synchronize()
            stream.synchronize()
            sums.append(int(total))
            comm.barrier()  # nobody sends the next before all have read
        left = (comm.rank - 1) % comm.size
        assert sums == [size * (turn + left) for turn in range(5)]

    run(2, body)


def test_a_graph_replays_launches(run):
    def body(comm):
        import cupy

        size = 1 << 12
        dst, src = comm.window(4 * size), comm.window(4 * size)
        kernel = comm.compile(SHIFT, "shift")
        source, target = src.array("i4"), dst.array("i4")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            source += 1
            kernel.launch(dst, src, 4 * size, block=128, stream=stream)
            graph = stream.end_capture()
        for turn in range(1, 11):
            comm.barrier()
            graph.launch(stream=stream)
            stream.synchronize()
            assert (target.get() == turn).all()
        comm.synchronize()

    run(2, body)


def test_memory_of_closed_windows_and_communicators_is_not_kept_mapped(backend):
    if backend != "ibrc_proxy":
        pytest.skip("the other backends' libraries map memory themselves")

    def body():
        kept = []  # by rank 0 alone: where rank 1 gives memory back, it gets the same place again
        for turn in range(6):
            with gin.init(backend=backend, platform="cuda", timeout="10s") as comm:
                kernel = comm.compile(SHIFT, "shift")
                for size in (64, 4 << 20, 64 << 20):
                    dst, src = comm.window(size), comm.window(size)
                    src.write(np.full(size, turn + 1, np.uint8))
                    kernel.launch(dst, src, size, block=256)
                    comm.synchronize()
                    assert (dst.read() == turn + 1).all()
                    kept += [dst.region, src.region] if comm.rank == 0 else []
                    dst.close(), src.close()
                comm.barrier()
            kept += [comm] if comm.rank == 0 else []

    gin.spawn(2, body, timeout=120)


def test_arrays_of_others_are_registered_or_refused_by_name(run, backend):
    torch = pytest.importorskip("torch")

    def body(comm):
        import cupy

        size = 5000
        src = comm.window(4 * size)
        src.write(np.arange(size, dtype="i4") * (comm.rank + 1))
        kernel = comm.compile(SHIFT, "shift")
        for array in (cupy.zeros(size, "i4"), torch.zeros(size, dtype=torch.int32, device="cuda")):
            if backend != "ibrc_proxy":
                with pytest.raises((gin.UnsupportedError, gin.RemoteError), match=backend):
                    comm.register(array)
                continue
            window = comm.register(array)
            assert window.address == array.__cuda_array_interface__["data"][0]
            kernel.launch(window, src, 4 * size, block=64)
            comm.synchronize()
            left = (comm.rank - 1) % comm.size
            assert (cupy.asarray(array).get() == np.arange(size) * (left + 1)).all()
            comm.barrier()
        with pytest.raises((gin.ArgumentError, gin.UnsupportedError, gin.RemoteError)):
            comm.register(np.zeros(4))

    run(2, body)
