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

CASE(a_loop_that_only_looks_is_a_wait) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    while (!net.test(5, 3)) net.epoch(5);
  } else {
    net.wait(gin::thread, 6, 1);
  }
}
)");
  for (const char* policy : {"random", "pct"}) {
    for (const char* hostile : {"0", "1"}) {
      Job job(2, options(1, {{"policy", policy}, {"hostile", hostile}}), 4096, "ibrc_proxy", 2, 1'000'000'000);
      job.launch(module, {1, 1, 1}, {3, 1, 1});
      CHECK(!job.run());
      CHECK_CONTAINS(job.simulation.report(),
                     "all 3 threads waiting in a loop that only looks at signal 5, which is 0 (kernel.cu:5)");
      CHECK_EQ(uint32_t(job.record(1).code), uint32_t(Code::timeout));  // deadlines pass before it is given up
      CHECK_EQ(job.record(0).state, 0u);
    }
  }
}

CASE(a_loop_that_looks_goes_on_when_there_is_something_to_see) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    uint64_t looks = 0;
    while (net.read(0) == 0 && looks < 100'000) ++looks;
    net.signal(1, gin::signal_inc{1});
    while (!net.test(0, 1)) ++looks;
    *static_cast<uint64_t*>(a.local()) = looks;
  } else {
    net.wait(gin::thread, 1, 1);
    net.signal(0, gin::signal_inc{0});
  }
}
)");
  for (const char* policy : {"random", "pct"}) {
    Job job(2, options(3, {{"policy", policy}}), 4096, "ibrc_proxy", 2, 1'000'000'000);
    job.launch(module);
    CHECK(job.run());
    CHECK(job.window<uint64_t>(0)[0] >= 100'000);
    CHECK_EQ(job.record(1).state, 0u);
  }
}

CASE(sleeping_takes_as_long_whoever_else_runs) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (threadIdx.x == 0) {
    const long long start = clock64();
    __nanosleep(50'000);
    *static_cast<long long*>(a.local()) = clock64() - start;
  } else {
    for (int i = 0; i < 300; ++i) {
      net.put(gin::thread, 1 - net.rank(), b, 64 * threadIdx.x, b, 2048, 8);
      net.flush(gin::thread);
    }
  }
}
)");
  for (const char* direct : {"0", "1"}) {
    Job job(2, options(5, {{"direct", direct}, {"stalls", "0"}}));
    job.launch(module, {1, 1, 1}, {8, 1, 1});
    CHECK(job.run());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const uint64_t slept = job.window<uint64_t>(rank)[0];
      CHECK(slept >= 50'000);
      CHECK(slept < 100'000);
    }
  }
}

CASE(room_in_a_ring_wakes_those_that_it_is_for) {
  Job job(2, options(1), 65536);
  job.launch(compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (int i = 0; i < 8; ++i) {
    const uint64_t at = 4 * (threadIdx.x + i * blockDim.x);
    net.put(gin::thread, 1 - net.rank(), a, at, b, at, 4, gin::signal_inc{0});
  }
  net.wait(gin::block, 0, 8 * blockDim.x);
}
)"),
             {1, 1, 1}, {1024, 1, 1});
  CHECK(job.run());
  CHECK_EQ(job.record(0).state + job.record(1).state, 0u);
  CHECK(job.simulation.steps() < 100 * job.simulation.operations());
}

CASE(a_run_that_does_not_end_is_given_up) {
  Job job(2, options(1, {{"most_steps", "20000"}}));
  job.launch(compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (;;) {
    net.get(gin::thread, 1 - net.rank(), a, 0, b, 0, 8);
    net.flush(gin::thread);
  }
}
)"));
  CHECK(!job.run());
  CHECK(job.simulation.exhausted());
  CHECK_CONTAINS(job.simulation.report(), "rank 1: kernel k");
}

CASE(a_source_that_changes_before_it_is_posted_is_told) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  auto* out = static_cast<volatile uint64_t*>(b.local());
  for (int i = 0; i < 4; ++i) out[i] = 1;
  net.put(gin::thread, 1 - net.rank(), a, 0, b, 0, 32);
  for (int i = 0; i < 4; ++i) out[i] = 2;
  net.flush(gin::thread);
}
)");
  uint32_t late = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Job job(2, options(seed, {{"trace", "1"}}));
    job.launch(module);
    CHECK(job.run());
    CHECK(job.simulation.drain());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      bool told = false, wrong = false;
      for (const sim::Record& r : job.simulation.trace().records())
        told |= r.kind == sim::Kind::read_source && r.rank == rank && r.value;
      for (int i = 0; i < 4; ++i) wrong |= job.window<uint64_t>(1 - rank)[i] != 1;
      CHECK_EQ(told, wrong);
      late += wrong;
    }
  }
  CHECK(late > 10);
}

CASE(memory_that_goes_is_left_alone) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (int i = 0; i < 8; ++i) net.put(gin::thread, 1 - net.rank(), a, 256 * i, b, 0, 256, gin::signal_inc{0});
}
)");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Job job(2, options(seed));
    job.launch(module);
    CHECK(job.run());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      job.simulation.forget_memory(job.window<char>(rank), 4096);
      std::memset(job.window<char>(rank), 3, 4096);
    }
    CHECK(job.simulation.drain());
    for (uint32_t rank = 0; rank < 2; ++rank)
      for (int i = 0; i < 2048; ++i)
        if (job.window<char>(rank)[i] != 3) check::fail("seed", uint32_t(seed), "a byte was written afterwards");
  }
}

CHECK_MAIN
