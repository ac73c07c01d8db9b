// The host platform's share of the device API: kernels run on fibers of one OS thread (csrc/host).
#pragma once

#include <cstdint>
#include <cstring>

#include "../comm.h"

namespace gin::platform {

// A wait in progress, which a report of where the kernel's threads stand names.
class Waiting : public host::Waiting {
 public:
#if defined(GIN_SIM)
  GIN_DEVICE Waiting(Operation operation, uint32_t id, uint64_t least)
      : host::Waiting(text(operation), id, least, site().file, site().line) {}
#else
  GIN_DEVICE Waiting(Operation operation, uint32_t id, uint64_t least) : host::Waiting(text(operation), id, least) {}
#endif

  // Lets other threads run; how many looks may follow at once.
  GIN_DEVICE uint32_t pause(uint32_t) {
    poll();
    return 1;
  }

 private:
#if defined(GIN_SIM)
  // The simulator's kernels know where their operations are called.
  GIN_DEVICE static host::Call site() {
    const host::Call* call = host::self()->call;
    return call ? *call : host::Call{__FILE__, __LINE__, false};
  }
#endif

  GIN_DEVICE static const char* text(Operation operation) {
    switch (operation) {
      case Operation::wait:
        return "wait on signal {} to reach {}";
      case Operation::wait_counter:
        return "wait on counter {} to reach {}";
      case Operation::barrier:
        return "barrier {}";
      case Operation::flush:
        return "flush";
      case Operation::quiet:
        return "quiet";
      case Operation::atomic:
        return "atomic";
      default:
        return "an operation that found its queue full";
    }
  }
};

GIN_DEVICE uint64_t clock_ns() { return host::clock_ns(); }

// Called once when a wait passes its deadline, before the failure is recorded: where all threads of the kernel stand is part
// of the story.
GIN_DEVICE void overdue() { host::capture(); }

// What the host wrote before the kernel and nobody writes while it runs.
template <class T>
GIN_DEVICE T load_constant(const T* from) {
  return *from;
}

// How many looks pass between two looks at the clock or at the failure word. In the simulator, looks are few.
#if defined(GIN_SIM)
constexpr uint32_t polls_per_clock = 1, polls_per_failure = 1;
#else
constexpr uint32_t polls_per_clock = 64, polls_per_failure = 1;
#endif

// One thread copies for the group: its fibers share an OS thread, and the C library's copy is the fastest one there is.
template <class Coop>
GIN_DEVICE void copy(Coop coop, void* to, const void* from, uint64_t bytes) {
  if (coop.leader()) std::memmove(to, from, bytes);
}

}  // namespace gin::platform
