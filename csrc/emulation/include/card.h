// The state behind the emulated libraries, as plain data: written by the host, read by kernels.
#pragma once

#include <cstdint>

#include "gin/comm.h"
#include "wire/request.h"

namespace gin::emulation {

// A card and what hangs on it, as plain data. `post` returns the operation's number within its context, from 1 on, or 0 when
// the card's queue is full.
struct Card {
  void* nic;
  uint64_t (*post)(void* nic, const wire::Request* request, uint64_t* counter);
  bool (*completed)(void* nic, uint32_t context, uint64_t number);  // everything up to `number` has completed
  bool (*settled)(void* nic, uint32_t context, uint64_t number);    // ... and settled at its target
  uint64_t (*posted)(void* nic, uint32_t context);                  // the last number
  void (*progress)(void* nic, uint32_t context);
  void (*overdue)(void* nic, uint32_t context, Operation operation,
                  uint64_t timeout_ns);  // records that a wait has passed its deadline
  uint64_t timeout_ns;                   // deadline of every wait, 0 for none
  const uint32_t* failed;  // nonzero once the job has failed: waits end, and what cannot be posted is dropped
  uint32_t rank, size;
  ControlLayout layout;
  Window control;
};

// What an NVSHMEM communicator is made of here: a card, and the symmetric heap, which is the wire's region 0.
struct Nvshmem {
  Card card;
  char* heap;
  uint64_t heap_bytes;
  char* const* peer_heap;  // [size] where each peer's heap is mapped here, or nullptr
};

}  // namespace gin::emulation

// A registered window: the region's number, and where load and store reach it.
struct ncclWindow_vidmem {
  uint32_t region;
  gin::Window window;
};
typedef const ncclWindow_vidmem* ncclWindow_t;

struct ncclDevComm {
  int rank, nRanks;
  int lsaRank, lsaSize;
  uint64_t* counters;  // [contexts][counters], of this rank
  uint32_t countersPerContext;
  const gin::emulation::Card* card;
};
