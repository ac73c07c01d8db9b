// The one agent that changes words of this rank's memory for others, so that additions from several ranks and contexts are
// never lost. In host memory it adds atomically. In GPU memory it writes values by a stream: of words that only grow it
// knows the value; of others it reads the word, adds, and writes, one word at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "nccl_plugin/gpu.h"
#include "nccl_plugin/region.h"

namespace gin::rma {

class Words {
 public:
  explicit Words(std::shared_ptr<Gpu> gpu);
  ~Words();
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  // To be held around everything below.
  std::unique_lock<std::mutex> lock() { return std::unique_lock<std::mutex>(mutex_); }

  // Adds to an 8-byte word of `region`. False: not yet; to be called again with the same `owner`.
  bool add(Region& region, uint64_t offset, uint64_t value, const void* owner);

  // `owner` will not call `add` again.
  void forget(const void* owner);

  // Writes a few bytes; they are read before this returns.
  void write(Region& region, uint64_t offset, const char* bytes, uint64_t count);

  // Copies from what the GPU reaches.
  void copy(Region& region, uint64_t offset, Address from, uint64_t bytes, Copy way);

  // Writes a word that the CPU polls, when everything before is done.
  void mark(Address word, uint64_t value);

  // The number that `passed` will reach when everything before is done.
  uint64_t mark();
  uint64_t passed() const;

  // Hands what was written to the GPU.
  void send();

  // Nothing is under way any more, or some seconds have passed.
  void finish(double seconds);

 private:
  struct Memory;  // pinned

  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Lane> lane_;
  uint64_t marked_ = 0;
  const void* reader_ = nullptr;  // whose word is being read
  uint64_t read_mark_ = 0;
};

}  // namespace gin::rma
