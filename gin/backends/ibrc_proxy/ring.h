// A descriptor ring as its producers see it, and the device-side state of the backend. Plain data with one layout in
// device code and host code.
#pragma once

#include <cstdint>

#include "descriptor.h"

namespace gin::ibrc {

// Where an atomic's old value goes. `done` is the atomic's ticket, written after `value`.
struct alignas(16) Result {
  uint64_t value;
  uint64_t done;
};

constexpr uint32_t result_slots = 64;

// What the engine says about a ring; it writes them together, so they share a cache line.
struct alignas(64) Progress {
  uint64_t consumed;  // slots before it may be written again
  uint64_t retired;   // operations before it are complete at their source
  uint64_t settled;   // operations before it have settled at their target
  uint64_t unused[5];
};

// One context's ring: many producers, one consumer. Comm::backend points to an array of them, one per context. A sequence
// counts slots and never wraps; the ticket of an operation is the sequence after its last slot, and it is complete when
// `progress->retired` has reached its ticket.
struct Ring {
  Descriptor* slots;  // host memory
  uint64_t depth;     // a power of two
  uint64_t* head;     // device memory: the next sequence to reserve
  uint64_t*
      consumed_cache;  // device memory: progress->consumed as last read; behind it on GPUs, whether a thread reads it
  uint64_t* free_results;   // device memory: one bit per free result slot
  Progress* progress;       // host memory
  Result* results;          // host memory
  uint64_t* counters;       // host memory: completions of the operations that named each counter
  const uint64_t* signals;  // host memory: this context's native signal words; nullptr when the control window has them
};

// The region in which the result slots of all contexts lie, beside the windows' regions: no descriptor can name it.
constexpr uint32_t result_region = max_windows;

}  // namespace gin::ibrc
