// What has gone wrong in a job so far, as its engines share it: the record, and the peers that are given up.
#pragma once

#include <atomic>
#include <memory>

#include "proxy/record.h"

namespace gin::proxy {

class Failures {
 public:
  // `failed` is the word that waits poll where it is not the record's own state; may be nullptr.
  Failures(Record& record, uint32_t* failed, uint32_t size)
      : record_(record), failed_(failed), size_(size), dead_(std::make_unique<std::atomic<bool>[]>(size)) {}

  void record(const Failure& failure) {
    fail(record_, failure);
    if (failed_) __atomic_store_n(failed_, 1u, __ATOMIC_RELEASE);
  }

  // From now on operations to that peer fail at once. Any thread.
  void give_up(uint32_t peer) {
    if (peer >= size_) return;
    dead_[peer].store(true, std::memory_order_relaxed);
    any_.store(true, std::memory_order_release);
  }

  bool given_up(uint32_t peer) const {
    return any_.load(std::memory_order_acquire) && dead_[peer].load(std::memory_order_relaxed);
  }

  uint32_t size() const { return size_; }

 private:
  Record& record_;
  uint32_t* failed_;
  uint32_t size_;
  std::atomic<bool> any_{false};
  std::unique_ptr<std::atomic<bool>[]> dead_;
};

}  // namespace gin::proxy
