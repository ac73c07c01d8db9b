// The completions of an endpoint that finishes each request while it is posted, waiting to be polled, in order.
#pragma once

#include <algorithm>
#include <vector>

#include "wire/wire.h"

namespace gin::wire {

class CompletionQueue {
 public:
  explicit CompletionQueue(uint64_t depth) : entries_(depth) {}

  size_t space() const { return entries_.size() - size_; }

  void push(const Completion& completion) {
    size_t at = first_ + size_;
    entries_[at < entries_.size() ? at : at - entries_.size()] = completion;
    ++size_;
  }

  size_t pop(Completion* out, size_t count) {
    count = std::min(count, size_);
    size_t before_end = std::min(count, entries_.size() - first_);
    std::copy_n(entries_.data() + first_, before_end, out);
    std::copy_n(entries_.data(), count - before_end, out + before_end);
    first_ += count;
    if (first_ >= entries_.size()) first_ -= entries_.size();
    size_ -= count;
    return count;
  }

 private:
  std::vector<Completion> entries_;
  size_t first_ = 0, size_ = 0;
};

constexpr uint64_t default_max_message = 1ull << 30, default_queue = 4096;
constexpr uint64_t most_message = 1ull << 47, most_queue = 1ull << 20;
constexpr uint32_t max_peers = 1u << 16;

}  // namespace gin::wire
