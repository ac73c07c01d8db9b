"""A kernel that ends, and whose window is read, without a wait for what a peer has sent.

gin check tests/sim/programs/missing_wait.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void pass(gin::Comm comm, gin::Window box, gin::Window payload, unsigned long long bytes) {
  gin::Context net(comm);
  net.put(gin::block, (net.rank() + 1) % net.size(), box, 0, payload, 0, bytes, gin::signal_inc{2});
  if (right) net.wait(gin::block, 2, net.epoch(2) + 1);
  net.flush(gin::block);
}
"""

BYTES = 64

with gin.init(timeout="1s") as comm:
    box, payload = comm.window(BYTES), comm.window(BYTES)
    payload.write(np.full(BYTES, 1 + comm.rank, np.uint8))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"pass<{str(right).lower()}>").launch(box, payload, BYTES, block=4)
    comm.synchronize()
    sender = (comm.rank - 1) % comm.size
    wrong = int((box.read() != 1 + sender).sum())
    assert not wrong, f"{wrong} of {BYTES} bytes of rank {sender} had not come"
