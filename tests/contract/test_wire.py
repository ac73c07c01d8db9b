"""What a hard wire does to order and completion: nothing that the contract does not allow."""

from __future__ import annotations

import numpy as np

BUSY = r"""
#include <gin/gin.cuh>
extern "C" __global__ void busy(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window back, int count) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    net.put(gin::thread, right, dst, 4 * i, src, 4 * i, 4, gin::signal_inc{0}, gin::counter_inc{0});
  }
  net.wait_counter(gin::block, 0, count);
  net.quiet(gin::block);
  net.barrier(gin::block, {}, 1);
  for (int i = threadIdx.x; i < count; i += blockDim.x) net.get(gin::thread, right, dst, 4 * i, back, 4 * i, 4);
  net.flush(gin::block);
  net.wait(gin::block, 0, count);
}
"""


def test_a_wire_that_takes_little_and_answers_late_and_in_any_order_loses_nothing(world):
    def body(comm):
        count = 2000
        dst, src, back = comm.window(4 * count), comm.window(4 * count), comm.window(4 * count)
        src.array("i4")[:] = np.arange(count) + comm.rank
        comm.compile(BUSY, "busy").launch(dst, src, back, count, block=64)
        comm.synchronize()
        assert (dst.array("i4") == np.arange(count) + (comm.rank - 1) % comm.size).all()
        assert (back.array("i4") == src.array("i4")).all()

    world.run(3, body, ring_depth=4, faults={"accept": 1, "refuse": 3, "reverse": 1, "settle_after": 50})
