// One operation as a wire takes it, and its end. Plain data, shared with the emulated libraries' device side.
#pragma once

#include <cstdint>

#include "gin/status.h"

namespace gin::wire {

enum class Verb : uint8_t { put, get, value, signal, atomic, fence };
enum class Atomic : uint8_t { fetch_add, compare_swap, swap, fetch_and, fetch_or, fetch_xor };

// As a local region: the offset is an address of this process, for wires that take one.
constexpr uint32_t local_address = 0xffffffffu;

// One operation. A put, value or signal may carry an addition to one 8-byte word of the target, applied after its own
// bytes have settled there; `ordered` makes it wait for every earlier request of this endpoint's context to that peer
// as well.
struct Request {
  Verb verb;
  Atomic atomic;
  bool has_signal;
  bool ordered;
  uint32_t context;
  uint32_t peer;  // for a fence: every peer
  uint32_t remote_region;
  uint32_t local_region;
  uint64_t remote_offset;
  uint64_t local_offset;  // put: source. get: destination. atomic: where the old value goes
  uint64_t bytes;         // value: 1 to 8. atomic: 4 or 8
  uint64_t value;         // value: the bytes, little end first. atomic: the operand
  uint64_t compare;
  uint32_t signal_region;
  uint64_t signal_offset;
  uint64_t signal_add;
  uint64_t token;  // handed back by its completion
};

// As a completion's token: no request ended, but the peer was found dead while its requests were being settled.
constexpr uint64_t no_request = ~0ull;

// The end of one request. With Code::ok the source may be reused and a get or an old value has landed.
struct Completion {
  uint64_t token;
  Code code;
  uint32_t peer;
  uint64_t detail;  // the wire's own word for a failure: a verbs syndrome, an errno
};

}  // namespace gin::wire
