#include "wire/cuda_pinned.h"

#include <algorithm>

namespace gin::wire::cuda {

PinnedWords::PinnedWords(uint64_t count) {
  void* memory = nullptr;
  check(driver().allocate_host(&memory, count * 8, portable_mapped), "allocating pinned memory");
  words_ = static_cast<uint64_t*>(memory);
  std::fill_n(words_, count, 0);
}

PinnedWords::~PinnedWords() {
  if (!words_) return;
  const Visit visit(context_);
  driver().free_host(words_);
}

Detour::~Detour() {
  if (!stream_.drain()) room_.leave();
}

int Detour::copy(Address to, Address from, uint64_t bytes) {
  const Address between = Address(uintptr_t(room_ + 0));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint64_t at = 0; at < bytes; at += bytes_at_once) {
    const uint64_t part = std::min(bytes_at_once, bytes - at);
    int result = driver().copy(between, from + at, part, stream_.get());
    if (result == success) result = driver().copy(to + at, between, part, stream_.get());
    if (result != success) return result;
  }
  return success;
}

}  // namespace gin::wire::cuda
