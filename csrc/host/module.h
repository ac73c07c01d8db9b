// A compiled kernel, loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "include/gin_host/abi.h"

namespace gin::host {

class Module {
 public:
  // Loads the shared object. gin::Error: config (no such file), compile (does not load, or is no kernel), unsupported
  // (made for another version of the executor).
  explicit Module(const std::string& path);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }
  const Entry& entry() const { return *entry_; }
  std::span<const Param> params() const { return {entry_->params, entry_->param_count}; }

  // The module's TLS segment is the image of a block's shared memory: static variables, and the room for dynamic shared
  // memory somewhere among them.
  uint64_t image_bytes() const { return image_bytes_; }
  uint64_t static_bytes() const { return image_bytes_ - dynamic_placeholder; }

  // Where it is loaded, and its code in memory.
  uintptr_t base() const { return base_; }
  bool has_code(uintptr_t address) const { return address - code_begin_ < code_end_ - code_begin_; }

  // Where the room for dynamic shared memory begins: found by the first scheduler that runs the module.
  static constexpr uint64_t unknown = ~uint64_t(0);
  uint64_t dynamic_offset() const { return dynamic_offset_.load(std::memory_order_relaxed); }
  void set_dynamic_offset(uint64_t offset) const { dynamic_offset_.store(offset, std::memory_order_relaxed); }

 private:
  void find_image();

  std::string path_;
  std::unique_ptr<void, int (*)(void*)> handle_;
  const Entry* entry_ = nullptr;
  uint64_t image_bytes_ = 0;
  uintptr_t base_ = 0, code_begin_ = 0, code_end_ = 0;
  mutable std::atomic<uint64_t> dynamic_offset_{unknown};
};

}  // namespace gin::host
