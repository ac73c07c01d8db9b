"""Hello, world: every rank writes its number into its right neighbour's window and waits for its left neighbour's.

gin run -n 4 examples/shift.py
GIN_BACKEND=nccl_gin gin run -n 4 examples/shift.py
"""

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

extern "C" __global__ void shift(gin::Comm comm, gin::Window dst) {
  gin::Context net(comm);
  int right = (net.rank() + 1) % net.size();
  net.put_value(right, dst, 0, net.rank(), gin::signal_inc{0});
  net.wait(gin::thread, 0, 1);
}
"""

with gin.init() as comm:
    dst = comm.window(4)
    comm.compile(SOURCE, "shift").launch(dst, grid=1, block=1)
    comm.synchronize()
    left = dst.read(np.uint32)[0]
    assert left == (comm.rank - 1) % comm.size
    print(f"rank {comm.rank} of {comm.size} ({comm.backend}): my left neighbour is rank {left}")
