"""A put without a signal, then a value with one: the signal covers the value alone, unless a fence stands between the two.

gin check tests/sim/programs/missing_fence.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void send(gin::Comm comm, gin::Window box, gin::Window payload, gin::Window seen, unsigned long long bytes) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    net.put(gin::block, 1, box, 8, payload, 0, bytes);
    if (right) net.fence(gin::block);
    if (threadIdx.x == 0) net.put_value(1, box, 0, bytes, gin::signal_inc{0});
    net.flush(gin::block);
  } else if (net.rank() == 1) {
    if (!net.wait(gin::block, 0, 1).ok()) return;
    const unsigned char* from = static_cast<const unsigned char*>(box.local(8));
    unsigned char* to = static_cast<unsigned char*>(seen.local());
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  }
}
"""

BYTES = 256

with gin.init(timeout="1s") as comm:
    box, payload, seen = comm.window(8 + BYTES), comm.window(BYTES), comm.window(BYTES)
    payload.write(np.arange(BYTES, dtype=np.uint8))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"send<{str(right).lower()}>").launch(box, payload, seen, BYTES, block=4)
    comm.synchronize()
    if comm.rank == 1:
        wrong = int((seen.read() != np.arange(BYTES)).sum())
        assert not wrong, f"{wrong} of {BYTES} bytes had not come when the flag had"
