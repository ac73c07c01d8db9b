"""A source that is written again before a flush: the put may not have read it yet.

gin check tests/sim/programs/reuse_source.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void send(gin::Comm comm, gin::Window box, gin::Window source, int rounds, int count) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    int* values = static_cast<int*>(source.local());
    for (int round = 0; round < rounds; ++round) {
      for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] = 1000 * round + i;
      const unsigned long long bytes = count * sizeof(int);
      net.put(gin::block, 1, box, round * bytes, source, 0, bytes, gin::signal_inc{0});
      if (right) net.flush(gin::block);
    }
    net.flush(gin::block);
  } else if (net.rank() == 1) {
    net.wait(gin::block, 0, rounds);
  }
}
"""

ROUNDS, COUNT = 3, 16

with gin.init(timeout="1s") as comm:
    box, source = comm.window(4 * ROUNDS * COUNT), comm.window(4 * COUNT)
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"send<{str(right).lower()}>").launch(box, source, ROUNDS, COUNT, block=4)
    comm.synchronize()
    if comm.rank == 1:
        expected = 1000 * np.arange(ROUNDS)[:, None] + np.arange(COUNT)
        wrong = int((box.read(np.int32).reshape(ROUNDS, COUNT) != expected).sum())
        assert not wrong, f"{wrong} of {ROUNDS * COUNT} values are another round's"
