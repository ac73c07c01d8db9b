// How an endpoint's work requests are put together: what both of its files build chains with.
#pragma once

#include "wire/verbs/endpoint.h"

namespace gin::wire::verbs {

inline bool VerbsEndpoint::has_room(const Queue& q, uint32_t requests) const {
  return q.posted - q.retired + requests <= depth_ && in_flight_ + requests <= most_in_flight_ &&
         chained_ + requests <= chain_length;
}

// One more work request at the end of the queue's chain; the caller says what it sends.
inline ibv_send_wr& VerbsEndpoint::chain(Queue& q, ibv_wr_opcode opcode, uint64_t target, uint32_t key, Entry entry) {
  ibv_send_wr& wr = requests_[chained_];
  wr.wr_id = uint64_t(q.peer) << number_bits | (q.posted & number_mask);
  wr.next = nullptr;
  wr.sg_list = &pieces_[chained_];
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = 0;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = target;
    wr.wr.atomic.rkey = key;
  } else {
    wr.wr.rdma.remote_addr = target;
    wr.wr.rdma.rkey = key;
  }
  ++chained_;
  ++in_flight_;
  if (q.last)
    q.last->next = &wr;
  else
    q.first = &wr, touched_.push_back(&q);
  q.last = &wr;
  q.entries[q.posted & (depth_ - 1)] = entry;
  ++q.posted;
  if (entry.writes) q.wrote = q.posted;
  if (entry.trips) q.tripped = q.posted;
  if ((q.posted & (depth_ / 4 - 1)) == 0) wr.send_flags = IBV_SEND_SIGNALED;
  return wr;
}

// Whether the next request has to wait for the gets and atomics that a fence came behind: a device may do it before the target
// has answered them. What is posted after it waits with it. Soft-RoCE does one after the other.
inline bool VerbsEndpoint::starts_fenced(Queue& q) {
  const bool waits = !soft_ && q.fence_goal > q.retired;
  q.fence_goal = 0;
  return waits;
}

}  // namespace gin::wire::verbs
