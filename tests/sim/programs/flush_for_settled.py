"""A flush taken for remote completion: it says that the source may be reused, and nothing of the target.

gin check tests/sim/programs/flush_for_settled.py -- wrong|right
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
    net.put(gin::block, 1, box, 0, payload, 0, bytes);
    if (right) {
      net.quiet(gin::block);
    } else {
      net.flush(gin::block);
    }
    if (threadIdx.x == 0) net.signal(1, gin::signal_inc{2});
  } else if (net.rank() == 1) {
    if (!net.wait(gin::block, 2, 1).ok()) return;
    const unsigned char* from = static_cast<const unsigned char*>(box.local());
    unsigned char* to = static_cast<unsigned char*>(seen.local());
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  }
}
"""

BYTES = 128

with gin.init(timeout="1s") as comm:
    box, payload, seen = comm.window(BYTES), comm.window(BYTES), comm.window(BYTES)
    payload.write(np.arange(1, 1 + BYTES, dtype=np.uint8))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"send<{str(right).lower()}>").launch(box, payload, seen, BYTES, block=4)
    comm.synchronize()
    if comm.rank == 1:
        wrong = int((seen.read() != np.arange(1, 1 + BYTES)).sum())
        assert not wrong, f"{wrong} of {BYTES} bytes had not come when the sender had flushed them"
