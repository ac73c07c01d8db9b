"""A signal that is reset while the peer's next increments are under way: those that came before the reset are lost.

gin check tests/sim/programs/reset_in_flight.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void rounds(gin::Comm comm, gin::Window box, int count) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    for (int round = 0; round < count; ++round) net.put_value(1, box, 4 * round, round + 1, gin::signal_inc{0});
  } else if (net.rank() == 1) {
    for (int round = 0; round < count; ++round) {
      if (!net.wait(gin::thread, 0, right ? round + 1 : 1).ok()) return;
      if (!right) net.reset(0);
    }
  }
}
"""

COUNT = 4

with gin.init(timeout="1s") as comm:
    box = comm.window(4 * COUNT)
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"rounds<{str(right).lower()}>").launch(box, COUNT)
    comm.synchronize()
    if comm.rank == 1:
        assert (box.read(np.int32) == np.arange(1, COUNT + 1)).all()
