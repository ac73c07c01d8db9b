// How fast descriptors pass from one producing thread through a ring, an engine and the null wire.
#pragma once

#include <cstdint>

namespace gin::proxy {

// Puts per second, from the first push to the retirement of the last. Throws gin::Error{timeout} past the deadline.
double ring_rate(uint64_t count, uint32_t depth, double deadline_s = 30.0);

}  // namespace gin::proxy
