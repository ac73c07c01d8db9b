// What the machine does without gin: the figures that gin's own are divided by. Each runs the least code that does the
// job, with the measurement that the benchmark's kernels use (one timestamp pair per sample).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gin::baseline {

// Two processes bounce a flag (one 8-byte word each way, on cache lines of their own) through shared memory, spinning
// with pause. Returns half the round trip of each iteration in nanoseconds.
std::vector<double> flag_pingpong(size_t iterations, size_t warmup, double deadline_s = 30);

// memcpy of `slots` messages of `bytes` from this process's shared memory into the memory of a second process that maps it
// too. With `touched`, outside the time, this process writes the messages before each iteration and the other reads them
// after it, as programs that communicate do; without, the memory stays with the copying core. Returns nanoseconds per
// message, one for each of `iterations`.
std::vector<double> memcpy_between(size_t bytes, size_t slots, bool touched, size_t iterations, size_t warmup,
                                   double deadline_s = 30);

// One producer thread and one consumer thread move `count` descriptors of 32 bytes through a ring of `depth` (a power
// of two). Returns descriptors per second.
double ring_rate(size_t count, size_t depth, double deadline_s = 30);

}  // namespace gin::baseline
