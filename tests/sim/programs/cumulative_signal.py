"""Chunks that all count on one signal: a count of n says that n of them have come, and not which.

gin check tests/sim/programs/cumulative_signal.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void send(gin::Comm comm, gin::Window box, gin::Window payload, gin::Window seen, int chunks, int count) {
  gin::Context net(comm);
  const unsigned long long bytes = count * sizeof(int);
  if (net.rank() == 0) {
    for (int c = 0; c < chunks; ++c) {
      net.put(gin::thread, 1, box, c * bytes, payload, c * bytes, bytes, gin::signal_inc{right ? unsigned(c) : 0u});
    }
    net.flush(gin::thread);
  } else if (net.rank() == 1) {
    const int* from = static_cast<const int*>(box.local());
    int* to = static_cast<int*>(seen.local());
    for (int c = 0; c < chunks; ++c) {
      if (!net.wait(gin::thread, right ? c : 0, right ? 1 : c + 1).ok()) return;
      for (int i = c * count; i < (c + 1) * count; ++i) to[i] = from[i];
    }
  }
}
"""

CHUNKS, COUNT = 4, 8

with gin.init(timeout="1s") as comm:
    box, payload, seen = (comm.window(4 * CHUNKS * COUNT) for _ in range(3))
    payload.write(np.arange(CHUNKS * COUNT, dtype=np.int32))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"send<{str(right).lower()}>").launch(box, payload, seen, CHUNKS, COUNT)
    comm.synchronize()
    if comm.rank == 1:
        wrong = int((seen.read(np.int32) != np.arange(CHUNKS * COUNT)).sum())
        assert not wrong, f"{wrong} of {CHUNKS * COUNT} values were taken from chunks that had not come"
