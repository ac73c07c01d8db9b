// Engines on threads: start, stop with and without work left, failures while running, where they run.
#include <sched.h>

#include <chrono>
#include <thread>

#include "check.h"
#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "proxy/ring_rate.h"
#include "wire/faulty.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::proxy;
using Clock = std::chrono::steady_clock;

namespace {

struct Job {
  explicit Job(uint32_t contexts, const wire::Options& options = {}, const ProxyOptions& chosen = {})
      : fabric(wire::make_fabric("null", 0, 4, options)), proxy(fabric, {contexts, 2, 4}, 2, record, nullptr, chosen) {}

  // Pushes one put; false when the ring is full.
  bool push(uint32_t context, uint32_t peer = 1) {
    const ibrc::Ring& ring = proxy.rings()[context];
    if (ibrc::load_shared(ring.head) + 1 - ibrc::load_acquire(&ring.progress->consumed) > ring.depth) return false;
    ibrc::Fields put;
    put.op = ibrc::Op::put, put.peer = peer;
    ibrc::publish(ring, ibrc::reserve(ring, 1).first, put);
    return true;
  }

  bool retired(uint32_t context, uint64_t count, double seconds = 10) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    while (ibrc::load_acquire(&proxy.rings()[context].progress->retired) < count) {
      if (Clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  Record record{};
  std::shared_ptr<wire::Fabric> fabric;
  Proxy proxy;
};

template <class Body>
double seconds_of(Body body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CASE(contexts_are_dealt_out_to_threads) {
  for (uint32_t threads : {1u, 2u, 7u}) {
    ProxyOptions options;
    options.threads = threads;
    Job job(3, {}, options);
    job.proxy.start();
    job.proxy.start();  // again: nothing happens
    CHECK_EQ(job.proxy.affinity().size(), size_t(std::min(threads, 3u)));
    for (uint32_t c = 0; c < 3; ++c)
      for (uint32_t i = 0; i < 100; ++i) CHECK(job.push(c));
    for (uint32_t c = 0; c < 3; ++c) CHECK(job.retired(c, 100));
    CHECK(job.proxy.stop(5));
    CHECK(job.proxy.stop(5));
    CHECK(!job.proxy.running());
    CHECK_EQ(job.proxy.stats().descriptors, 300ull);
  }
}

CASE(a_sleeping_thread_wakes_by_itself) {
  ProxyOptions options;
  options.thread.spin = options.thread.yield = 0;
  Job job(1, {}, options);
  job.proxy.start();
  for (int i = 1; i <= 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(job.push(0));
    CHECK(job.retired(0, uint64_t(i)));
  }
}

CASE(stop_finishes_what_is_in_the_rings) {
  Job job(1);
  for (int i = 0; i < 1000; ++i) CHECK(job.push(0));
  job.proxy.start();
  CHECK(job.proxy.stop(5));
  CHECK(job.retired(0, 1000, 0));
}

CASE(stop_does_not_wait_past_its_deadline) {
  Job job(1, {{"fault.hold", "1"}});
  job.proxy.start();
  CHECK(job.push(0));
  bool drained = true;
  const double took = seconds_of([&] { drained = job.proxy.stop(0.2); });
  CHECK(!drained);
  CHECK(took >= 0.15 && took < 3);
  wire::faults_of(*job.fabric)->hold = 0;
  job.proxy.start();  // and it can go on
  CHECK(job.retired(0, 1));
}

CASE(closing_with_descriptors_in_flight) {
  Job job(2, {{"fault.hold", "1"}});
  job.proxy.start();
  for (int i = 0; i < 50; ++i) CHECK(job.push(uint32_t(i) % 2));
}

CASE(a_failing_peer_does_not_stop_the_others) {
  Job job(1, {{"fault.fail_peer", "2"}, {"fault.fail_detail", "110"}});
  job.proxy.start();
  for (uint32_t i = 0; i < 200; ++i) {
    while (!job.push(0, i % 4)) std::this_thread::yield();
  }
  CHECK(job.retired(0, 200));
  CHECK(has_failed(job.record));
  CHECK_EQ(job.record.peer, 2);
  CHECK_EQ(job.record.detail, 110ull);
  CHECK_EQ(job.proxy.stats().failures, 50ull);
  CHECK(job.proxy.stop(5));
}

CASE(completions_in_reverse_order) {
  ProxyOptions options;
  options.depth = 16;
  Job job(1, {{"fault.reverse", "1"}}, options);
  job.proxy.start();
  for (uint32_t i = 0; i < 5000; ++i) {
    while (!job.push(0)) std::this_thread::yield();
  }
  CHECK(job.retired(0, 5000));
}

CASE(a_thread_runs_where_it_is_told) {
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) last = cpu;
  ProxyOptions options;
  options.thread.cpu = last;
  Job job(1, {}, options);
  job.proxy.start();
  CHECK(job.proxy.affinity() == std::vector<std::vector<int>>{{last}});
  options.thread.cpu = 100000;
  Job nowhere(1, {}, options);
  CHECK_THROWS(Error, "does not exist", nowhere.proxy.start());
  CHECK(!nowhere.proxy.running());
  options.thread.cpu = CPU_SETSIZE - 1;
  Job missing(1, {}, options);
  CHECK_THROWS(Error, "cannot run on cpu", missing.proxy.start());
}

CASE(the_rate_program_measures) { CHECK(ring_rate(200000, 64) > 1e4); }

CHECK_MAIN
