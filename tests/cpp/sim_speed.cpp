// How fast the simulator is. Prints its figures; checks bounds where GIN_SPEED_BOUNDS=1.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "check.h"
#include "sim_job.h"

using namespace sim_test;
using Clock = std::chrono::steady_clock;

namespace {

const bool bounded = std::getenv("GIN_SPEED_BOUNDS") != nullptr;

void print(const std::string& name, double value, const char* unit) {
  std::printf("     %-44s %12.1f %s\n", name.c_str(), value, unit);
}

uint64_t resident_kib() {
  std::ifstream status("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  status >> pages >> resident;
  return resident * 4;
}

constexpr const char* ring_source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  const uint32_t to = (net.rank() + 1) % net.size();
  const uint64_t turns = *static_cast<uint64_t*>(b.local(4088));
  for (uint64_t turn = 1; turn <= turns; ++turn) {
    for (int i = 0; i < 8; ++i) net.put(gin::thread, to, a, 64 * i, b, 64 * i, 64);
    net.signal(to, gin::ordered(gin::signal_inc{0}));
    net.wait(gin::thread, 0, turn);
  }
  net.flush(gin::thread);
}
)";

constexpr const char* all_source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (uint32_t i = 1; i <= net.size(); ++i)
    net.put(gin::thread, (net.rank() + i) % net.size(), a, 8 * net.rank(), b, 0, 8, gin::signal_inc{0});
  net.wait(gin::thread, 0, net.size());
  net.barrier(gin::thread);
}
)";

struct Outcome {
  double rate;  // operations per second
  uint64_t steps, operations;
};

Outcome ring(const std::string& backend, uint32_t ranks, uint64_t operations, const sim::Options& options) {
  static std::map<std::string, std::shared_ptr<host::Module>> made;
  auto& module = made[backend];
  if (!module) module = compile(ring_source, backend);
  Job job(ranks, options, 4096, backend, 1);
  for (uint32_t r = 0; r < ranks; ++r) job.window<uint64_t>(r, 1)[511] = operations / 9 / ranks;
  job.launch(module);
  const auto begin = Clock::now();
  CHECK(job.run());
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return {double(job.simulation.operations()) / seconds, job.simulation.steps(), job.simulation.operations()};
}

}  // namespace

CASE(operations_per_second) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"}) {
    for (uint32_t ranks : {2u, 16u, 256u, 1024u}) {
      const Outcome hostile = ring(backend, ranks, 200'000, options(1));
      const Outcome plain = ring(backend, ranks, 200'000, options(1, {{"hostile", "0"}}));
      print(std::string(backend) + " hostile, " + std::to_string(ranks) + " ranks", hostile.rate, "operations/s");
      print(std::string(backend) + " modelled, " + std::to_string(ranks) + " ranks", plain.rate, "operations/s");
      print("steps per operation", double(hostile.steps) / double(hostile.operations), "");
      if (bounded && ranks <= 16) CHECK(hostile.rate > 300'000);
    }
  }
}

CASE(trace_overhead) {
  const double without = ring("ibrc_proxy", 4, 200'000, options(1)).rate;
  const double with = ring("ibrc_proxy", 4, 200'000, options(1, {{"trace", "1"}})).rate;
  print("recording the trace", without / with, "times");
  if (bounded) CHECK(without / with < 2);
}

CASE(all_to_all_over_many_ranks) {
  const auto module = compile(all_source);
  for (uint32_t ranks : {64u, 256u, 1024u}) {
    const uint64_t before = resident_kib();
    Job job(ranks, options(3), 8192, "ibrc_proxy", 1);
    const uint64_t idle = resident_kib();
    job.launch(module);
    const auto begin = Clock::now();
    CHECK(job.run());
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    print(std::to_string(ranks) + " ranks", seconds, "s");
    print("per operation", seconds * 1e9 / double(job.simulation.operations()), "ns");
    print("idle rank, resident", double(idle - before) / ranks, "KiB");
    print("running rank, resident", double(resident_kib() - before) / ranks, "KiB");
  }
}

CHECK_MAIN
