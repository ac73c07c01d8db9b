// Requests that the wires' tests post: between the regions that they all have.
#pragma once

#include "wire/request.h"

namespace gin::wire {

constexpr uint32_t control = 0, data = 1, result = 9;

inline Request request(Verb verb, uint32_t peer, uint64_t remote_offset, uint64_t local_offset, uint64_t bytes) {
  Request r{};
  r.verb = verb;
  r.peer = peer;
  r.remote_region = r.local_region = data;
  r.remote_offset = remote_offset;
  r.local_offset = local_offset;
  r.bytes = bytes;
  r.token = 0x1234567890abcdefull;
  return r;
}

}  // namespace gin::wire
