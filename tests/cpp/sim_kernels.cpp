// Kernels in the simulator: the contract kept, promises that nobody gave broken, the same seed the same run.
#include "check.h"
#include "sim_job.h"

using namespace sim_test;

namespace {

const uint64_t seeds = host_test::sanitizer_flags().empty() ? 30 : 9;

// A ring: everybody sends to the right and reads what came from the left.
constexpr const char* shift_source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  auto* mine = static_cast<uint64_t*>(b.local());
  for (uint64_t turn = 1; turn <= 20; ++turn) {
    for (int i = threadIdx.x; i < 100; i += blockDim.x) mine[i] = 1000 * turn + net.rank();
    __syncthreads();
    net.put(gin::block, (net.rank() + 1) % net.size(), a, 0, b, 0, 800, gin::signal_inc{0});
    net.wait(gin::block, 0, turn);
    const uint64_t left = (net.rank() + net.size() - 1) % net.size();
    auto* got = static_cast<uint64_t*>(a.local());
    for (int i = threadIdx.x; i < 100; i += blockDim.x) {
      if (got[i] != 1000 * turn + left) atomicAdd(reinterpret_cast<unsigned long long*>(got + 200), 1ull);
    }
    net.flush(gin::block);
    net.barrier(gin::block);
  }
}
)";

std::shared_ptr<host::Module> shift(const std::string& backend) {
  static std::map<std::string, std::shared_ptr<host::Module>> made;
  auto& module = made[backend];
  if (!module) module = compile(shift_source, backend);
  return module;
}

void shift_is_right(const std::string& backend, uint32_t ranks, const sim::Options& options) {
  Job job(ranks, options, 4096, backend);
  job.launch(shift(backend), {1, 1, 1}, {40, 1, 1});
  CHECK(job.run());
  for (uint32_t r = 0; r < ranks; ++r) {
    CHECK_EQ(job.window<uint64_t>(r)[200], 0u);
    CHECK_EQ(job.record(r).state, 0u);
    CHECK_EQ(job.window<uint64_t>(r)[99], 20000u + (r + ranks - 1) % ranks);
  }
}

}  // namespace

CASE(modelled_runs_are_right) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"})
    for (uint32_t ranks : {1u, 2u, 5u}) shift_is_right(backend, ranks, options(0, {{"hostile", "0"}}));
}

CASE(hostile_runs_are_right) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"})
    for (uint64_t seed = 0; seed < seeds; ++seed) shift_is_right(backend, 1 + seed % 3, options(seed));
}

CASE(pct_runs_are_right) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"})
    for (uint64_t seed = 0; seed < seeds; ++seed)
      shift_is_right(backend, 1 + seed % 3, options(seed, {{"policy", "pct"}, {"depth", "4"}, {"steps", "2000"}}));
}

CHECK_MAIN
