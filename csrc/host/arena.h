// The address space that fibers live in: an array of control blocks, then stacks, each with a guard page at its low end.
// The layout is the kernels' too (gin_host/abi.h). Memory is committed when a stack is first used, and kept.
#pragma once

#include <cstdint>

#include "include/gin_host/abi.h"

namespace gin::host {

class Arena {
 public:
  Arena();  // gin::Error{memory} when the address space cannot be had
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  static constexpr uint32_t slots = arena_slots - first_slot;

  // Slots are used in order: the number that can be used grows by one. gin::Error{memory} when it cannot.
  void grow();
  uint32_t used() const { return used_; }

  Thread* thread(uint32_t slot) const { return reinterpret_cast<Thread*>(base_) + first_slot + slot; }
  uint32_t slot(const Thread* thread) const { return uint32_t(thread - reinterpret_cast<Thread*>(base_)) - first_slot; }

  char* stack_bottom(uint32_t slot) const { return base_ + (uint64_t(first_slot) + slot) * stack_bytes; }
  // Where the first frame begins. Staggered, as the first frames of all stacks would share cache sets otherwise.
  char* stack_top(uint32_t slot) const { return stack_bottom(slot) + stack_bytes - 192 * (slot % 16); }

  bool contains(const void* address) const { return uintptr_t(address) - uintptr_t(base_) < arena_bytes; }
  // Whether the address is in the guard page below a stack that is in use, and whose.
  Thread* overrun(const void* address) const;

 private:
  char* base_ = nullptr;
  uint32_t used_ = 0;
};

}  // namespace gin::host
