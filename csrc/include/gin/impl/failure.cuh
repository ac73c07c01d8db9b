// The first failure is written once; every later wait returns it.
#pragma once

#include "../platform/platform.cuh"
#include "memory.cuh"

namespace gin::impl {

// What a wait waits for, for the record it leaves when it fails.
struct Subject {
  Operation operation;
  uint32_t context;
  int32_t peer;
  uint32_t id;
};

// One of the window's own pointers, by the bits of the rank: what is indexed a compiler keeps in memory.
GIN_DEVICE void* near_pointer(const Window& window, uint32_t peer) {
  static_assert(near_ranks == 8, "gin: three bits");
  const auto pick = [](bool high, void* one, void* other) { return high ? one : other; };
  void* pairs[4];
  GIN_UNROLLED for (uint32_t i = 0; i < 4; ++i) pairs[i] = pick(peer & 1, window.near[2 * i + 1], window.near[2 * i]);
  return pick(peer & 4, pick(peer & 2, pairs[3], pairs[2]), pick(peer & 2, pairs[1], pairs[0]));
}

// Where the host says that a place of a peer is mapped here, or nullptr.
GIN_DEVICE void* mapped(Channel channel, const Window& window, uint64_t offset, uint32_t peer) {
  const Comm& comm = channel.comm;
  const bool everywhere = comm.has(Comm::all_direct) && !comm.has(Comm::mixed);
  void* base = window.base;
  if (comm.has(Comm::few)) {
    if (everywhere || peer != comm.rank) base = near_pointer(window, peer);
  } else if (peer != comm.rank) {
    base = platform::load_constant(&window.peers[peer].pointer);
  }
  return everywhere || base ? static_cast<char*>(base) + offset : nullptr;
}

GIN_DEVICE bool failed(const Comm& comm) { return load_relaxed(comm.failed) != 0; }

// Whether a peer is lost, of which the job's failure says nothing; for `size`: whether any is. What the peer sent before is
// seen by whoever looks after this.
GIN_DEVICE bool lost(const Comm& comm, uint32_t peer) {
  return comm.has(Comm::peers_fail) && load_acquire(&comm.lost()[peer]) != 0;
}

// What a job has failed with, by its record. Not inlined, nor is the next one: every wait and every check has a way here that
// is never taken. What they need is passed by value, as a Comm whose address is taken lies in memory.
GIN_DEVICE_CALL Status status_of(Record* record) {
  for (uint32_t look = 0; look < 1000000; ++look) {
    if (load_acquire(&record->state) == Record::complete) return {record->code};
  }
  return {Code::internal};
}

GIN_DEVICE_CALL Status record_failure(Record* record, uint32_t* failed, Code code, Subject subject, uint64_t expected,
                                      uint64_t seen, uint64_t detail) {
  uint32_t state = Record::empty;
  if (Word<uint32_t>(record->state)
          .compare_exchange_strong(state, Record::writing, cuda::memory_order_acquire, cuda::memory_order_relaxed)) {
    record->code = code;
    record->operation = subject.operation;
    record->peer = subject.peer;
    record->context = subject.context;
    record->id = subject.id;
    record->expected = expected;
    record->seen = seen;
    record->detail = detail;
    record->block[0] = blockIdx.x, record->block[1] = blockIdx.y, record->block[2] = blockIdx.z;
    record->thread[0] = threadIdx.x, record->thread[1] = threadIdx.y, record->thread[2] = threadIdx.z;
    Word<uint32_t>(record->state).store(Record::complete, cuda::memory_order_release);
  }
  if (failed != &record->state) store_relaxed(failed, 1u);
  return status_of(record);
}

// The status of a job that has failed.
GIN_DEVICE Status failure(const Comm& comm) { return status_of(comm.record); }

// Records a failure unless there is one already; returns the status that stands.
GIN_DEVICE Status fail(const Comm& comm, Code code, Subject subject, uint64_t expected, uint64_t seen,
                       uint64_t detail = 0) {
  return record_failure(comm.record, comm.failed, code, subject, expected, seen, detail);
}

}  // namespace gin::impl
