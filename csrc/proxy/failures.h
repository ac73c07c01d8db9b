// What has gone wrong in a job so far, as its engines share it: the record, and the peers that are given up.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "proxy/record.h"

namespace gin::proxy {

// Where the loss of a peer is written when it is no failure of the job (Comm::peers_fail), in memory that the device reads.
struct Losses {
  uint32_t* lost = nullptr;   // [size + 1] Comm::lost(); nullptr: the first failure is the job's
  Record* records = nullptr;  // [size] what is known of each peer's loss
};

class Failures {
 public:
  // `raise` sets the word that waits poll where it is not the record's own state; may be empty.
  Failures(Record& record, std::function<void()> raise, uint32_t size, const Losses& losses = {})
      : record_(record),
        raise_(std::move(raise)),
        size_(size),
        losses_(losses),
        dead_(std::make_unique<std::atomic<bool>[]>(size)) {}

  // Writes a failure down: that of a peer where it may be one, else the job's.
  void record(const Failure& failure) {
    if (losses_.lost && failure.code == Code::remote && failure.peer >= 0 && uint32_t(failure.peer) < size_) {
      lose(failure);
      return;
    }
    fail(record_, failure);
    if (raise_) raise_();
  }

  // From now on operations to that peer fail at once. Any thread.
  void give_up(uint32_t peer) {
    if (peer >= size_) return;
    if (losses_.lost) lose({Code::remote, Operation::none, int32_t(peer)});
    if (!dead_[peer].exchange(true, std::memory_order_acq_rel)) given_up_.fetch_add(1, std::memory_order_release);
  }

  // How many peers are given up.
  uint32_t given_up() const { return given_up_.load(std::memory_order_acquire); }

  bool given_up(uint32_t peer) const { return given_up() != 0 && dead_[peer].load(std::memory_order_relaxed); }

  // Whether the job goes on without peers that are lost.
  bool goes_on() const { return losses_.lost != nullptr; }

  uint32_t size() const { return size_; }

 private:
  // Whoever sees the word finds the record.
  void lose(const Failure& failure) {
    if (!fail(losses_.records[failure.peer], failure)) return;
    __atomic_store_n(&losses_.lost[failure.peer], 1u, __ATOMIC_RELEASE);
    __atomic_store_n(&losses_.lost[size_], 1u, __ATOMIC_RELEASE);
  }

  Record& record_;
  std::function<void()> raise_;
  uint32_t size_;
  const Losses losses_;
  std::atomic<uint32_t> given_up_{0};
  std::unique_ptr<std::atomic<bool>[]> dead_;
};

}  // namespace gin::proxy
