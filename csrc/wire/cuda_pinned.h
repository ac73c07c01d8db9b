// Memory of the host that GPUs see as well, and the way that copies take through it.
#pragma once

#include <cstdint>
#include <mutex>

#include "wire/cuda_driver.h"

namespace gin::wire::cuda {

// Zeroed words that both the CPU and the GPU see.
class PinnedWords {
 public:
  explicit PinnedWords(uint64_t count);  // throws gin::Error
  ~PinnedWords();
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;

  uint64_t* operator+(uint64_t index) { return words_ + index; }

  // Leaves the memory to the GPU, which may still reach it.
  void leave() { words_ = nullptr; }

 private:
  const Context context_ = current_context();
  uint64_t* words_;
};

// How copies within one GPU are done. The driver does them with kernels, for which there is no room where one that waits for
// such a copy has every multiprocessor; to pinned memory and back it is copy engines that copy.
class Detour {
 public:
  // For copies in this stream, which outlives it.
  explicit Detour(const UrgentStream& stream) : stream_(stream), room_(bytes_at_once / 8) {}
  ~Detour();

  // Puts a copy into the stream. Any thread. Returns CUDA's error.
  int copy(Address to, Address from, uint64_t bytes);

 private:
  static constexpr uint64_t bytes_at_once = 1 << 20;

  const UrgentStream& stream_;
  std::mutex mutex_;  // so that the stream has both halves one after the other
  PinnedWords room_;
};

}  // namespace gin::wire::cuda
