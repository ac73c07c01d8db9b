// The host's hand on a failure record: the same first-one-wins rule as the device's.
#pragma once

#include <cstdint>

#include "gin/status.h"

namespace gin::proxy {

// What is known about a failure; a record's other fields are zero.
struct Failure {
  Code code = Code::internal;
  Operation operation = Operation::none;
  int32_t peer = -1;
  uint32_t context = 0;
  uint32_t id = 0;
  uint64_t expected = 0;
  uint64_t seen = 0;
  uint64_t detail = 0;
};

// Writes the failure unless there is one already; returns whether this one stands.
inline bool fail(Record& record, const Failure& failure) {
  uint32_t state = Record::empty;
  if (!__atomic_compare_exchange_n(&record.state, &state, Record::writing, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return false;
  record.code = failure.code;
  record.operation = failure.operation;
  record.peer = failure.peer;
  record.context = failure.context;
  record.id = failure.id;
  record.expected = failure.expected;
  record.seen = failure.seen;
  record.detail = failure.detail;
  for (uint32_t& index : record.block) index = 0;
  for (uint32_t& index : record.thread) index = 0;
  __atomic_store_n(&record.state, Record::complete, __ATOMIC_RELEASE);
  return true;
}

// Whether the record is complete; its other fields may then be read.
inline bool has_failed(const Record& record) {
  return __atomic_load_n(&record.state, __ATOMIC_ACQUIRE) == Record::complete;
}

}  // namespace gin::proxy
