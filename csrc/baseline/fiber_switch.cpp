// The bare cost of a switch between two fibers of the host platform, as one line of JSON. Argument: number of switches.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "host/switch.h"

namespace {

// Both sides run the same code, as the threads of a kernel do.
struct Side {
  void* own = nullptr;
  Side* other = nullptr;
};

__attribute__((noinline)) void bounce(Side& side, long times) {
  for (long i = 0; i < times; ++i) gin_host_switch(&side.own, side.other->own);
}

void forever(void* side) { bounce(*static_cast<Side*>(side), -1UL >> 1); }

}  // namespace

int main(int argc, char** argv) {
  const long switches = argc > 1 ? std::atol(argv[1]) : 4'000'000;
  if (switches < 2) {
    std::fprintf(stderr, "usage: %s [SWITCHES >= 2]\n", argv[0]);
    return 2;
  }
  constexpr size_t stack = 64 * 1024;
  auto memory = std::make_unique<char[]>(stack);
  auto top = (reinterpret_cast<uintptr_t>(memory.get()) + stack) & ~uintptr_t(63);
  Side caller, fiber;
  caller.other = &fiber;
  fiber.other = &caller;
  fiber.own = gin::host::make_context(reinterpret_cast<void*>(top), forever, &fiber);
  std::vector<double> samples;
  for (int sample = 0; sample < 11; ++sample) {
    auto begin = std::chrono::steady_clock::now();
    bounce(caller, switches / 2);
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    samples.push_back(took.count() / double(switches / 2 * 2));
  }
  std::sort(samples.begin(), samples.end());
  std::printf("{\"test\": \"fiber_switch\", \"switches\": %ld, \"min_ns\": %.2f, \"median_ns\": %.2f}\n", switches,
              samples.front(), samples[samples.size() / 2]);
}
