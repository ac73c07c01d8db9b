"""A get whose bytes are read before a flush: they may not have come yet.

gin check tests/sim/programs/get_before_flush.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void fetch(gin::Comm comm, gin::Window table, gin::Window copy, gin::Window seen, unsigned long long bytes) {
  gin::Context net(comm);
  if (net.rank() != 1) return;
  net.get(gin::block, 0, table, 0, copy, 0, bytes);
  if (right) net.flush(gin::block);
  const unsigned char* from = static_cast<const unsigned char*>(copy.local());
  unsigned char* to = static_cast<unsigned char*>(seen.local());
  for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  net.flush(gin::block);
}
"""

BYTES = 128

with gin.init(timeout="1s") as comm:
    table, copy, seen = comm.window(BYTES), comm.window(BYTES), comm.window(BYTES)
    table.write(np.arange(1, 1 + BYTES, dtype=np.uint8))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"fetch<{str(right).lower()}>").launch(table, copy, seen, BYTES, block=4)
    comm.synchronize()
    if comm.rank == 1:
        wrong = int((seen.read() != np.arange(1, 1 + BYTES)).sum())
        assert not wrong, f"{wrong} of {BYTES} bytes had not come when they were read"
    comm.barrier()
