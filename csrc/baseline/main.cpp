// gin_baseline: prints the baselines as they are without Python.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "baseline/baseline.h"

namespace {

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

}  // namespace

int main() {
  try {
    using namespace gin::baseline;
    std::printf("flag ping-pong   %8.1f ns one way\n", median(flag_pingpong(100000, 10000)));
    const size_t bytes = 4 << 20;
    std::printf("memcpy 4 MiB     %8.2f GB/s\n", double(bytes) / median(memcpy_between(bytes, 2, false, 200, 20)));
    std::printf("  of new data    %8.2f GB/s\n", double(bytes) / median(memcpy_between(bytes, 2, true, 200, 20)));
    std::printf("32-byte ring     %8.1f M descriptors/s\n", ring_rate(20'000'000, 1024) * 1e-6);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_baseline: %s\n", error.what());
    return 1;
  }
}
