// What has gone wrong in a job so far, as its engines share it: the record, and the peers that are given up.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "proxy/record.h"

namespace gin::proxy {

class Failures {
 public:
  // `raise` sets the word that waits poll where it is not the record's own state; may be empty.
  Failures(Record& record, std::function<void()> raise, uint32_t size)
      : record_(record), raise_(std::move(raise)), size_(size), dead_(std::make_unique<std::atomic<bool>[]>(size)) {}

  void record(const Failure& failure) {
    fail(record_, failure);
    if (raise_) raise_();
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
  std::function<void()> raise_;
  uint32_t size_;
  std::atomic<bool> any_{false};
  std::unique_ptr<std::atomic<bool>[]> dead_;
};

}  // namespace gin::proxy
