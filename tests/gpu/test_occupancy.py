"""Nothing that a kernel waits for needs an SM: the kernel may have all of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gin

# Two blocks leave no thread of an SM free. Once all blocks of all ranks are there, a warp sends `messages` of `bytes` to
# every rank, gets one from each, and sees to it that all is done; all blocks wait for that and for what all ranks send.
FULL = r"""
#include <gin/gin.cuh>
extern "C" __global__ void __launch_bounds__(1024, 2)
    full(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window got, gin::Window blocks, uint64_t bytes,
         uint32_t messages, uint64_t turn) {
  gin::Context net(comm);
  if (threadIdx.x == 0) atomicAdd(static_cast<unsigned long long*>(blocks.local()), 1ull);
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    if (threadIdx.x == 0) {
      const uint64_t all = turn * gridDim.x;
      while (gin::impl::load_acquire(static_cast<uint64_t*>(blocks.local())) < all) {}
      net.barrier(gin::thread);
    }
    __syncwarp();
    for (uint32_t i = threadIdx.x; i < messages; i += 32) {
      for (uint32_t peer = 0; peer < net.size(); ++peer) {
        net.put(gin::thread, peer, dst, (net.rank() * messages + i) * bytes, src, i * bytes, bytes, gin::signal_inc{0});
      }
    }
    __syncwarp();
    if (threadIdx.x == 0) {
      for (uint32_t peer = 0; peer < net.size(); ++peer) net.get(gin::thread, peer, src, 0, got, peer * bytes, bytes);
      if (net.flush(gin::thread).ok() && net.quiet(gin::thread).ok()) {
        net.put_value(net.rank(), blocks, 8, turn, gin::signal_inc{1});
      }
    }
  }
  net.wait(gin::block, 0, turn * messages * net.size());
  net.wait(gin::block, 1, turn);
}
"""

pytestmark = pytest.mark.timeout(180)


def payload(sender: int, turn: int, size: int) -> np.ndarray:
    return ((np.arange(size) * (sender + 3) + turn) % 251).astype("u1")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.two_gpus)])
def test_a_kernel_that_has_the_whole_gpu_is_served(run, backend, ranks):
    messages = 64
    room = 1 << 20

    def body(comm):
        import cupy

        dst, src = comm.window(comm.size * messages * room), comm.window(messages * room)
        got, blocks = comm.window(comm.size * room), comm.window(16)
        block = cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"] // 2
        kernel = comm.compile(FULL, "full")
        with pytest.raises(gin.ArgumentError, match=r"holds \d+") as refused:
            kernel.launch(dst, src, got, blocks, 8, messages, 1, grid=1_000_000, block=block)
        grid = int(re.search(r"holds (\d+)", str(refused.value))[1])
        blocks.array("u8").fill(0)
        for turn, size in enumerate([8, 1000, 1 << 16, room], 1):
            src.array("u1").set(payload(comm.rank, turn, messages * room))
            comm.barrier()
            kernel.launch(dst, src, got, blocks, size, messages, turn, grid=grid, block=block)
            comm.synchronize()
            expected = [payload(sender, turn, messages * size) for sender in range(comm.size)]
            assert (dst.array("u1")[: comm.size * messages * size].get() == np.concatenate(expected)).all()
            assert (got.array("u1")[: comm.size * size].get() == np.concatenate([all[:size] for all in expected])).all()
            assert (blocks.array("u8").get() == (turn * grid, turn)).all()
            comm.barrier()

    run(ranks, body, route="native", heap="512M")
