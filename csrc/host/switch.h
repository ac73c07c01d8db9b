// The context switch between fibers, and what the sanitizers have to be told about it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define GIN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GIN_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define GIN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GIN_TSAN 1
#endif
#endif

#ifdef GIN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef GIN_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// Saves the callee-saved registers and the stack pointer in *from, and continues where `to` was saved. The floating-point
// control words are not switched: nothing here changes them.
extern "C" void gin_host_switch(void** from, void* to);

namespace gin::host {

// A saved context that calls entry(argument) at the first switch to it. `entry` never returns.
void* make_context(void* stack_top, void (*entry)(void*), void* argument);

// One side of a switch, as the sanitizers see it. Empty without them.
struct Shadow {
#ifdef GIN_ASAN
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
#endif
#ifdef GIN_TSAN
  void* fiber = nullptr;
#endif

  void leave([[maybe_unused]] Shadow& to) {
#ifdef GIN_ASAN
    __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.size);
#endif
#ifdef GIN_TSAN
    __tsan_switch_to_fiber(to.fiber, 0);
#endif
  }

  // Called first thing by the side that has been switched to.
  void arrive([[maybe_unused]] Shadow& from) {
#ifdef GIN_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, &from.bottom, &from.size);
#endif
  }
};

}  // namespace gin::host
