"""A put on one context, its ordered signal on another: nothing is ordered across contexts.

gin check tests/sim/programs/other_context.py -- wrong|right
"""

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

template <bool right>
__global__ void send(gin::Comm comm, gin::Window box, gin::Window payload, gin::Window seen, unsigned long long bytes) {
  gin::Context data(comm, 0), control(comm, right ? 0 : 1);
  if (data.rank() == 0) {
    data.put(gin::thread, 1, box, 0, payload, 0, bytes);
    control.signal(1, gin::ordered(gin::signal_inc{0}));
    data.flush(gin::thread);
  } else if (data.rank() == 1) {
    if (!control.wait(gin::thread, 0, 1).ok()) return;
    const unsigned char* from = static_cast<const unsigned char*>(box.local());
    unsigned char* to = static_cast<unsigned char*>(seen.local());
    for (unsigned i = 0; i < bytes; ++i) to[i] = from[i];
  }
}
"""

BYTES = 64

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
