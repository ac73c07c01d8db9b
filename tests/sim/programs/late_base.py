"""The value that a signal starts from, read after the peer may have sent: what came before is not waited for again.

gin check tests/sim/programs/late_base.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void swap(gin::Comm comm, gin::Window box) {
  gin::Context net(comm);
  const unsigned peer = (net.rank() + 1) % net.size();
  const unsigned long long base = right ? net.epoch(0) : net.read(0);
  net.put_value(peer, box, 0, 100 + net.rank(), gin::signal_inc{0});
  net.wait(gin::thread, 0, base + 1);
}
"""

with gin.init(timeout="1s") as comm:
    box = comm.window(4)
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"swap<{str(right).lower()}>").launch(box)
    comm.synchronize()
    assert box.read(np.int32)[0] == 100 + (comm.rank - 1) % comm.size
