// gin_ring_rate [COUNT [DEPTH [RUNS]]]: the descriptor ring over the null wire beside a bare single-producer ring, in
// interleaved runs; prints medians as JSON.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "baseline/baseline.h"
#include "proxy/ring_rate.h"

namespace {

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
    const uint32_t depth = argc > 2 ? uint32_t(std::strtoul(argv[2], nullptr, 10)) : 1024;
    const int runs = argc > 3 ? std::atoi(argv[3]) : 5;
    std::vector<double> ours, bare;
    for (int i = 0; i < runs; ++i) {
      ours.push_back(gin::proxy::ring_rate(count, depth));
      bare.push_back(gin::baseline::ring_rate(count, depth));
    }
    const double our_rate = median(ours) * 1e-6, bare_rate = median(bare) * 1e-6;
    std::printf(
        "{\"descriptors\": %llu, \"depth\": %u, \"runs\": %d, \"ring_Mops\": %.2f, \"bare_ring_Mops\": %.2f, "
        "\"ratio\": %.3f}\n",
        static_cast<unsigned long long>(count), depth, runs, our_rate, bare_rate, our_rate / bare_rate);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_ring_rate: %s\n", error.what());
    return 1;
  }
}
