// The GPU of one rank: memory that other ranks map, pinned memory, and streams of copies and single words. Nothing here
// starts a kernel: one could wait behind kernels that wait for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nccl_plugin/mesh.h"
#include "wire/cuda_pinned.h"

namespace gin::rma {

using wire::cuda::Address;
using wire::cuda::Stream;

// A range of GPU memory as other processes can map it: whole allocations, and where in the first it begins.
struct Exported {
  uint64_t offset = 0;
  std::vector<uint64_t> bytes;  // of each allocation
  std::vector<Descriptor> allocations;
};

// Memory of another rank's GPU, mapped for this one.
class Mapping {
 public:
  Mapping(Address base, uint64_t bytes, uint64_t offset) : base_(base), bytes_(bytes), offset_(offset) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Address address() const { return base_ + offset_; }

 private:
  Address base_;
  uint64_t bytes_, offset_;
};

// Host memory that the GPU may read and write while this lives.
class Pinned {
 public:
  Pinned(void* memory, uint64_t bytes);  // throws gin::Error
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  Address device(const void* inside) const { return device_ + uint64_t(static_cast<const char*>(inside) - memory_); }

 private:
  char* memory_;
  Address device_ = 0;
};

class Gpu {
 public:
  // The calling thread's, or null where there is no driver or no context.
  static std::shared_ptr<Gpu> current();

  // Makes the GPU, if there is one, the thread's while it lives.
  class Use {
   public:
    explicit Use(const Gpu* gpu) {
      if (gpu) visit_.emplace(gpu->context_);
    }

   private:
    std::optional<wire::cuda::Visit> visit_;
  };

  // Nothing where the memory was not allocated to be exported.
  std::optional<Exported> share(const void* data, uint64_t bytes) const;

  // What it is called in every process.
  const std::string& name() const { return name_; }

  // Nothing where the GPUs do not reach one another.
  std::unique_ptr<Mapping> map(const Exported& exported) const;

 private:
  Gpu(wire::cuda::Context context, int device, std::string name)
      : context_(context), device_(device), name_(std::move(name)) {}
  wire::cuda::Context context_;
  int device_;
  std::string name_;
};

// Between GPUs or with host memory, or within one GPU.
enum class Copy { straight, within };

// A stream of copies and words. The owner has made the GPU the thread's. All throw gin::Error{internal} when the GPU is lost.
class Lane {
 public:
  void copy(Address to, Address from, uint64_t bytes, Copy way = Copy::straight);
  // Words wait until `send` or the next copy, and go to the GPU together.
  void write64(Address to, uint64_t value);
  void write32(Address to, uint32_t value);
  void send();

  // Whether all has been done; throws when the GPU is lost.
  bool idle();

 private:
  // CUstreamBatchMemOpParams.
  struct Word {
    uint32_t operation;
    uint64_t address;
    uint64_t value;
    uint32_t flags;
    uint64_t alias;
    uint64_t unused;
  };
  static_assert(sizeof(Word) == 48);
  static constexpr size_t most_words = 64;

  void add(uint32_t operation, Address address, uint64_t value);

  wire::cuda::UrgentStream stream_;
  wire::cuda::Detour detour_{stream_};
  std::array<Word, most_words> words_{};
  size_t count_ = 0;
};

// Waits until the lane is idle, for some seconds at most, and says nothing when it is not.
void drain(Lane& lane, double seconds);

}  // namespace gin::rma
