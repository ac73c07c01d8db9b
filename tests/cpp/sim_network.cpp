// The simulated network by itself, and what a run is made of: determinism, the trace, faults, deadlocks, deaths.
#include <algorithm>
#include <set>

#include "check.h"
#include "sim/rate.h"
#include "sim_job.h"

using namespace sim_test;

namespace {

const bool sanitized = !host_test::sanitizer_flags().empty();

constexpr const char* busy_source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm, blockIdx.x % 2);
  __shared__ uint64_t seen;
  if (threadIdx.x == 0) seen = 0;
  __syncthreads();
  for (uint32_t turn = 1; turn <= 5; ++turn) {
    for (uint32_t i = 1; i < net.size(); ++i) {
      net.put(gin::warp, (net.rank() + i) % net.size(), a, 64 * turn, b, 64 * blockIdx.x, 37, gin::signal_inc{blockIdx.x});
    }
    net.wait(gin::block, blockIdx.x, turn * (net.size() - 1) * (blockDim.x / 32));
    net.put_value(net.rank(), a, 2048 + 8 * blockIdx.x, turn, gin::signal_add{8 + blockIdx.x, 3});
    net.flush(gin::block);
  }
  if (threadIdx.x == 0) atomicAdd(static_cast<unsigned long long*>(b.local(1024)), 1ull);
}
)";

bool same(const sim::Record& a, const sim::Record& b) {
  return a.time == b.time && a.kind == b.kind && a.op == b.op && a.piece == b.piece && a.rank == b.rank &&
         a.peer == b.peer && a.context == b.context && a.region == b.region && a.file == b.file && a.line == b.line &&
         a.offset == b.offset && a.bytes == b.bytes && a.value == b.value && a.value2 == b.value2 &&
         a.number == b.number;
}

sim::Records traced(const std::shared_ptr<host::Module>& module, const sim::Options& options) {
  Job job(3, options);
  job.launch(module, {3, 1, 1}, {64, 1, 1});
  CHECK(job.run());
  for (uint32_t rank = 0; rank < 3; ++rank) CHECK_EQ(job.window<uint64_t>(rank, 1)[128], 3u);
  return job.simulation.trace().records();
}

uint64_t count(const sim::Records& records, sim::Kind kind) {
  return uint64_t(std::count_if(records.begin(), records.end(), [&](const sim::Record& r) { return r.kind == kind; }));
}

// Rank 0 puts to rank 1 and waits for the end of it.
constexpr const char* one_put_source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (net.rank() == 0) {
    for (int i = 0; i < 4; ++i) net.put(gin::thread, 1, a, 256 * i, b, 0, 200, gin::signal_inc{0});
    net.quiet(gin::thread);
  } else {
    net.wait(gin::thread, 0, 4);
  }
}
)";

}  // namespace

CASE(a_seed_is_a_run) {
  const auto module = compile(busy_source);
  for (const char* policy : {"random", "pct"}) {
    for (uint64_t seed = 1; seed <= (sanitized ? 1 : 3); ++seed) {
      const auto with = [&](uint64_t s) { return options(s, {{"trace", "1"}, {"policy", policy}}); };
      const auto first = traced(module, with(seed)), again = traced(module, with(seed)),
                 other = traced(module, with(seed + 77));
      REQUIRE(first.size() == again.size());
      CHECK(std::equal(first.begin(), first.end(), again.begin(), same));
      CHECK(first.size() != other.size() || !std::equal(first.begin(), first.end(), other.begin(), same));
    }
  }
}

CASE(tracing_changes_nothing) {
  const auto module = compile(busy_source);
  uint64_t steps[2], times[2];
  for (int on = 0; on < 2; ++on) {
    Job job(3, options(5, {{"trace", on ? "1" : "0"}}));
    job.launch(module, {3, 1, 1}, {64, 1, 1});
    CHECK(job.run());
    steps[on] = job.simulation.steps();
    times[on] = job.simulation.now();
  }
  CHECK_EQ(steps[0], steps[1]);
  CHECK_EQ(times[0], times[1]);
}

CASE(the_trace_tells_the_whole_story) {
  const auto module = compile(busy_source);
  Job job(3, options(4, {{"trace", "1"}}));
  job.launch(module, {3, 1, 1}, {64, 1, 1});
  CHECK(job.run());
  CHECK(job.simulation.drain());
  const auto& records = job.simulation.trace().records();
  const uint64_t requests = 3 * 3 * 5 * (2 * 2 + 64);
  CHECK_EQ(count(records, sim::Kind::post), requests);
  CHECK_EQ(count(records, sim::Kind::complete), requests);
  CHECK_EQ(count(records, sim::Kind::settle), requests);
  CHECK_EQ(count(records, sim::Kind::signal), requests);
  CHECK(count(records, sim::Kind::deliver) > requests);  // in pieces
  CHECK_EQ(count(records, sim::Kind::launch), 3u);
  CHECK_EQ(count(records, sim::Kind::end), 3u);
  CHECK(count(records, sim::Kind::met) >= 3 * 3 * 5u);
  std::set<uint32_t> lines;
  for (const sim::Record& r : records) {
    if (r.kind != sim::Kind::post) continue;
    lines.insert(r.line);
    CHECK_EQ(job.simulation.trace().files()[r.file], "kernel.cu");
  }
  CHECK_EQ(lines.size(), 2u);
  CHECK(lines.count(9) && lines.count(12));
}

CASE(a_completion_in_error_is_the_record_of_its_rank) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"}) {
    Job job(2, options(1, {{"fault.fail_at", "2"}, {"fault.fail_detail", "77"}}), 4096, backend);
    job.launch(compile(one_put_source, backend));
    CHECK(job.run());
    CHECK(job.record(0).code == Code::remote);
    CHECK_EQ(job.record(0).peer, 1);
    CHECK_EQ(job.record(0).detail, 77u);
    CHECK(job.record(1).code == Code::timeout);  // its deadline, in virtual time
    CHECK(job.simulation.now() > 30'000'000'000u);
  }
}

CASE(a_dead_peer_fails_who_talks_to_it) {
  Job job(2, options(1));
  const auto module = compile(one_put_source);
  job.simulation.kill(1);
  job.launch(module);
  CHECK_EQ(job.simulation.pending(1), 0u);
  CHECK(job.run());
  CHECK(job.record(0).code == Code::remote);
  CHECK_EQ(job.record(0).peer, 1);
  CHECK(job.simulation.drain());
}

CASE(a_peer_that_dies_in_between) {
  const auto module = compile(busy_source);
  for (uint64_t seed = 0; seed < (sanitized ? 6 : 30); ++seed) {
    Job job(3, options(seed, {{"fault.dead_rank", "2"}, {"fault.dead_after", "400"}}), 4096, "ibrc_proxy", 2,
            1'000'000'000);
    job.launch(module, {3, 1, 1}, {64, 1, 1});
    CHECK(job.run());
    CHECK(job.record(0).state == Record::complete);
    CHECK(job.record(1).state == Record::complete);
    CHECK(job.simulation.drain());
  }
}

CASE(full_queues_and_refusals_lose_nothing) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"}) {
    const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (int i = 0; i < 300; ++i) net.put(gin::thread, 1 - net.rank(), a, 8 * i, b, 8, 8, gin::signal_inc{0});
  net.wait(gin::thread, 0, 300);
}
)",
                                backend);
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Job job(2, options(seed, {{"queue", "4"}, {"fault.refuse_one_in", "3"}}), 4096, backend);
      job.launch(module);
      CHECK(job.run());
      CHECK_EQ(job.record(0).state, 0u);
      CHECK_EQ(job.record(1).state, 0u);
    }
  }
}

CASE(a_registration_fails_on_request) {
  sim::Simulation simulation(2, options(0, {{"fault.register_at", "1"}, {"fault.register_rank", "1"}}));
  char bytes[64];
  auto zero = simulation.fabric(0), one = simulation.fabric(1);
  zero->add_region(0, bytes, 64);
  zero->add_region(1, bytes, 64);
  one->add_region(0, bytes, 64);
  CHECK_THROWS(Error, "rank 1 cannot register", one->add_region(1, bytes, 64));
  one->add_region(2, bytes, 64);
}

CASE(a_deadlock_names_who_waits_for_what) {
  Job job(3, options(1), 4096, "ibrc_proxy", 2, 0);
  job.launch(compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (net.rank() < 2) net.wait(gin::block, 5 + net.rank(), 3);
}
)"),
             {1, 1, 1}, {2, 1, 1});
  CHECK(!job.run());
  const std::string text = job.simulation.report();
  CHECK_CONTAINS(text, "rank 0: kernel k");
  CHECK_CONTAINS(text, "wait on signal 5 to reach 3 (kernel.cu:4)");
  CHECK_CONTAINS(text, "rank 1: kernel k");
  CHECK_CONTAINS(text, "wait on signal 6 to reach 3 (kernel.cu:4)");
  CHECK(text.find("rank 2") == std::string::npos);
  CHECK(job.simulation.now() < 1'000'000'000);
}

CASE(an_error_in_a_kernel_is_its_ranks) {
  Job job(2, options(1));
  job.launch(compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  if (net.rank() == 1 && threadIdx.x == 0) __syncthreads();
}
)"),
             {1, 1, 1}, {2, 1, 1});
  CHECK_THROWS(Error, "a barrier that not all threads of the block reach", job.run());
  CHECK_EQ(job.simulation.pending(1), 0u);
}

CASE(many_blocks_get_their_turns) {
  for (const char* hostile : {"0", "1"}) {
    Job job(2, options(1, {{"hostile", hostile}, {"max_threads", "1024"}}));
    const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(static_cast<unsigned long long*>(a.local()), 1ull);
}
)");
    job.launch(module, {500, 1, 1}, {32, 1, 1});
    job.launch(module, {3, 2, 5}, {7, 3, 2});
    CHECK(job.run());
    CHECK_EQ(job.window<uint64_t>(0)[0], 680u);
    CHECK_EQ(job.window<uint64_t>(1)[0], 680u);
  }
}

CASE(what_is_not_delivered_reads_as_poison) {
  uint32_t poisoned = 0;
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  net.put(gin::thread, 1 - net.rank(), a, 0, b, 0, 64);
}
)");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Job job(2, options(seed));
    job.launch(module);
    CHECK(job.run());
    for (uint32_t rank = 0; rank < 2; ++rank)
      for (int i = 0; i < 8; ++i) poisoned += job.window<uint64_t>(rank)[i] == 0xa5a5a5a5a5a5a5a5u;
    CHECK(job.simulation.drain());
    for (uint32_t rank = 0; rank < 2; ++rank)
      for (int i = 0; i < 8; ++i) CHECK_EQ(job.window<uint64_t>(rank)[i], 0u);
  }
  CHECK(poisoned > 0);
}

CASE(work_per_message_is_flat_in_ranks) {
  const auto module = compile(R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm);
  for (uint64_t turn = 1; turn <= 20; ++turn) {
    net.put(gin::thread, (net.rank() + 1) % net.size(), a, 0, b, 0, 64, gin::signal_inc{0});
    net.wait(gin::thread, 0, turn);
  }
}
)");
  double per_operation[2];
  int i = 0;
  for (uint32_t ranks : {4u, sanitized ? 32u : 256u}) {
    Job job(ranks, options(1), 4096, "ibrc_proxy", 1);
    job.launch(module);
    CHECK(job.run());
    per_operation[i++] = double(job.simulation.steps()) / double(job.simulation.operations());
  }
  CHECK(per_operation[1] < 1.3 * per_operation[0]);
}

CASE(rings_and_network_without_kernels) {
  const sim::Rate few = sim::rate(20'000, 2, options(1)), many = sim::rate(20'000, sanitized ? 32 : 128, options(1));
  CHECK(few.operations_per_second > 0);
  CHECK(many.steps_per_operation < 1.3 * few.steps_per_operation);
}

CASE(options_are_checked) {
  CHECK_THROWS(Error, "no option 'sed'", options(0, {{"sed", "1"}}));
  CHECK_THROWS(Error, "fault.fail_at", options(0, {{"sed", "1"}}));
  CHECK_THROWS(Error, "must be random or pct", options(0, {{"policy", "fair"}}));
  CHECK_THROWS(Error, "model.inter.bandwidth_GBps", options(0, {{"model.inter.bandwidth_GBps", "-1"}}));
  CHECK_THROWS(Error, "whole number", options(0, {{"queue", "0"}}));
  CHECK_THROWS(Error, "1 to 65536 ranks", sim::Simulation(0, options(0)));
}

CHECK_MAIN
