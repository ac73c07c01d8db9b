#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "../error.h"

namespace gin::host {

namespace {

uint64_t page_bytes() { return uint64_t(sysconf(_SC_PAGESIZE)); }

[[noreturn]] void throw_memory(const std::string& what, const char* remedy) {
  throw Error(Error::Kind::memory, "host platform: " + what + ": " + std::strerror(errno) + "; " + remedy);
}

// The process may have so many mappings (vm.max_map_count), and a stack with its guard takes two. Some are left to everybody
// else: where none is, the next allocation fails wherever it is.
constexpr uint64_t mappings_per_stack = 2, mappings_of_others = 4096;
std::atomic<uint64_t> stacks{0};  // of all arenas

uint64_t most_stacks() {
  static const uint64_t most = [] {
    uint64_t mappings = 0;
    std::ifstream("/proc/sys/vm/max_map_count") >> mappings;
    if (mappings == 0) return ~uint64_t(0);
    const uint64_t others = mappings / 4 < mappings_of_others ? mappings / 4 : mappings_of_others;
    return (mappings - others) / mappings_per_stack;
  }();
  return most;
}

}  // namespace

Arena::Arena() {
  // Twice the size holds one aligned piece; the rest goes back.
  void* reserved = mmap(nullptr, 2 * arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    throw_memory("cannot reserve " + std::to_string(2 * arena_bytes >> 30) + " GiB of address space for thread stacks",
                 "raise the limit on virtual memory (ulimit -v)");
  }
  auto begin = reinterpret_cast<uintptr_t>(reserved);
  uintptr_t aligned = (begin + arena_bytes - 1) & ~uintptr_t(arena_bytes - 1);
  if (aligned > begin) munmap(reserved, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + arena_bytes), begin + arena_bytes - aligned);
  base_ = reinterpret_cast<char*>(aligned);
  if (mprotect(base_, uint64_t(arena_slots) * sizeof(Thread), PROT_READ | PROT_WRITE) != 0) {
    int error = errno;
    munmap(base_, arena_bytes);
    errno = error;
    throw_memory("cannot commit the threads' control blocks", "free some memory");
  }
  madvise(base_, arena_bytes, MADV_NOHUGEPAGE);
}

Arena::~Arena() {
  munmap(base_, arena_bytes);
  stacks.fetch_sub(used_, std::memory_order_relaxed);
}

void Arena::grow() {
  uint64_t guard = page_bytes();
  const bool room = stacks.load(std::memory_order_relaxed) < most_stacks();
  if (!room) errno = ENOMEM;
  if (!room || mprotect(stack_bottom(used_) + guard, stack_bytes - guard, PROT_READ | PROT_WRITE) != 0) {
    throw_memory("cannot commit the stack of thread " + std::to_string(used_) + " of those resident at once",
                 "use fewer threads, or raise vm.max_map_count");
  }
  ++used_;
  stacks.fetch_add(1, std::memory_order_relaxed);
}

Thread* Arena::overrun(const void* address) const {
  if (!contains(address)) return nullptr;
  uint64_t offset = uint64_t(static_cast<const char*>(address) - base_);
  uint64_t slot = offset >> stack_bits;
  if (slot < first_slot || slot - first_slot >= used_ || (offset & (stack_bytes - 1)) >= page_bytes()) return nullptr;
  return thread(uint32_t(slot - first_slot));
}

}  // namespace gin::host
