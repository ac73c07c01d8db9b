// How fast the simulator is without kernels: descriptor rings, their engines, and the network.
#pragma once

#include <cstdint>

#include "sim/options.h"

namespace gin::sim {

struct Rate {
  double operations_per_second;
  double steps_per_operation;  // work that does not depend on the machine
};

// `count` puts of 64 bytes with a signal, from each of `ranks` to its right neighbour in turn. Throws gin::Error{internal}
// when one was lost.
Rate rate(uint64_t count, uint32_t ranks, const Options& options);

}  // namespace gin::sim
