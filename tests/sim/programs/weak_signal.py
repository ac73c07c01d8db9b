"""Puts, then a signal of its own for all of them: it covers them only when it is an ordered one.

gin check tests/sim/programs/weak_signal.py -- wrong|right
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
    net.put(gin::thread, 1, box, 0, payload, 0, bytes / 2);
    net.put(gin::thread, 1, box, bytes / 2, payload, bytes / 2, bytes / 2);
    if (right) {
      net.signal(1, gin::ordered(gin::signal_inc{3}));
    } else {
      net.signal(1, gin::signal_inc{3});
    }
    net.flush(gin::thread);
  } else if (net.rank() == 1) {
    if (!net.wait(gin::thread, 3, 1).ok()) return;
    const unsigned char* from = static_cast<const unsigned char*>(box.local());
    unsigned char* to = static_cast<unsigned char*>(seen.local());
    for (unsigned i = 0; i < bytes; ++i) to[i] = from[i];
  }
}
"""

BYTES = 128

with gin.init(timeout="1s") as comm:
    box, payload, seen = comm.window(BYTES), comm.window(BYTES), comm.window(BYTES)
    payload.write(np.arange(BYTES, dtype=np.uint8))
    comm.barrier()
    right = sys.argv[1:] == ["right"]
    comm.compile(SOURCE, f"send<{str(right).lower()}>").launch(box, payload, seen, BYTES)
    comm.synchronize()
    if comm.rank == 1:
        wrong = int((seen.read() != np.arange(BYTES)).sum())
        assert not wrong, f"{wrong} of {BYTES} bytes had not come when the signal had"
