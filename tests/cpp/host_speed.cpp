// What the host platform costs: prints figures, one JSON object a line, and fails only where a bound of the project is
// missed by far. Without optimisation or with a sanitizer the bounds are not checked.
#include <chrono>

#include "check.h"
#include "host_kernel.h"

using namespace host_test;
using Clock = std::chrono::steady_clock;

namespace {

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool bounded = true;
#else
constexpr bool bounded = false;
#endif

double ns_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

void print(const char* what, double value, const char* unit) {
  std::printf("{\"test\": \"%s\", \"%s\": %.3g}\n", what, unit, value);
}

// The shortest of some runs on a warm stream, in nanoseconds.
template <class... A>
double best(Stream& stream, std::shared_ptr<const Module> module, const Shape& shape, const A&... arguments) {
  double shortest = 1e18;
  for (int i = 0; i < 5; ++i) {
    auto begin = Clock::now();
    stream.launch(make_launch(module, shape, arguments...));
    stream.synchronize(std::chrono::seconds(60));
    shortest = std::min(shortest, ns_since(begin));
  }
  return shortest;
}

}  // namespace

CASE(switches) {
  auto k = compile("extern \"C\" __global__ void k(int n) { for (int i = 0; i < n; ++i) gin::host::yield(); }");
  Stream stream({{~0u, 0, 0}, 0});  // never backs off
  for (uint32_t threads : {2u, 64u, 1024u}) {
    int n = 2'000'000 / int(threads);
    double ns = best(stream, k, {{1, 1, 1}, {threads, 1, 1}}, n) / n / threads;
    print(("yield_among_" + std::to_string(threads)).c_str(), ns, "ns");
    if (bounded) CHECK(ns < 100);
  }
  // One thread alone: a processor pause and little else.
  int n = 2000;
  print("yield_alone", best(stream, k, {}, n) / n, "ns");
}

CASE(barriers_and_warps) {
  auto sync = compile("extern \"C\" __global__ void k(int n) { for (int i = 0; i < n; ++i) __syncthreads(); }");
  auto warp =
      compile("extern \"C\" __global__ void k(int n) { for (int i = 0; i < n; ++i) __shfl_xor_sync(~0u, i, 1); }");
  Stream stream;
  int n = 1000;
  for (uint32_t blocks : {1u, 8u}) {
    double ns = best(stream, sync, {{blocks, 1, 1}, {256, 1, 1}}, n);
    print(("syncthreads_" + std::to_string(blocks) + "x256").c_str(), ns / n / blocks / 256, "ns_per_thread");
    print(("syncthreads_" + std::to_string(blocks) + "x256_1000_times").c_str(), ns / 1e6, "ms");
    if (bounded) CHECK(ns < 2e9);
  }
  print("shuffle", best(stream, warp, {{1, 1, 1}, {256, 1, 1}}, n) / n / 256, "ns_per_thread");
}

CASE(launches) {
  auto k = compile("extern \"C\" __global__ void k() {}");
  Stream stream;
  print("empty_launch_and_synchronize", best(stream, k, {}) / 1e3, "us");
  auto begin = Clock::now();
  constexpr int launches = 2000;
  for (int i = 0; i < launches; ++i) stream.launch(make_launch(k, {}));
  stream.synchronize(std::chrono::seconds(60));
  print("empty_launch_in_a_row", ns_since(begin) / launches / 1e3, "us");
  print("empty_thread", best(stream, k, {{1000, 1, 1}, {256, 1, 1}}) / 256'000, "ns");
}

CASE(compilation) {
  auto begin = Clock::now();
  compile("extern \"C\" __global__ void k(float* a) { a[threadIdx.x] = __shfl_sync(~0u, a[threadIdx.x], 0); }");
  double seconds = ns_since(begin) / 1e9;
  print("compile_small_kernel", seconds, "s");
  if (bounded) CHECK(seconds < 5);
}

CHECK_MAIN
