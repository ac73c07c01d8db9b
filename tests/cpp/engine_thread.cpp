// Engines on threads: start, stop with and without work left, failures while running, where they run.
#include <sched.h>

#include <chrono>
#include <stdexcept>
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

enum class Throws { post, poll, settled, thing };

// A wire that throws from one of an endpoint's calls, for ever from the first request on.
class ThrowingFabric final : public wire::Fabric {
 public:
  explicit ThrowingFabric(Throws throws) : throws_(throws) {}
  std::string add_region(uint32_t, void*, uint64_t) override { return {}; }
  void import_region(uint32_t, uint32_t, const std::string&, void*) override {}
  void remove_region(uint32_t) override {}
  std::unique_ptr<wire::Endpoint> endpoint() override { return std::make_unique<Endpoint>(throws_); }
  uint64_t max_message() const override { return 1 << 30; }

 private:
  class Endpoint final : public wire::Endpoint {
   public:
    explicit Endpoint(Throws throws) : throws_(throws) {}
    size_t post(const wire::Request* requests, size_t) override {
      if (throws_ == Throws::thing) throw 7;
      meet(Throws::post);
      token_ = requests->token;
      ++taken_;
      return 1;
    }
    size_t poll(wire::Completion* completions, size_t) override {
      if (!taken_) return 0;
      meet(Throws::poll);
      *completions = {token_, Code::ok, 1, 0};
      --taken_;
      return 1;
    }
    bool settled() override { return meet(Throws::settled), true; }

   private:
    void meet(Throws here) const {
      if (throws_ == here) throw std::runtime_error("the wire has come to an end");
    }
    Throws throws_;
    uint64_t token_ = 0, taken_ = 0;
  };
  Throws throws_;
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

// Nothing of it is posted twice, waits end as the job has failed, and so does the thread.
CASE(a_wire_that_throws_fails_the_job) {
  for (Throws throws : {Throws::post, Throws::poll, Throws::settled, Throws::thing}) {
    Record record{};
    std::atomic<int> raised{0};
    ProxyOptions options;
    options.device.raise = [&] { ++raised; };
    Proxy proxy(std::make_shared<ThrowingFabric>(throws), {1, 2, 4}, 2, record, nullptr, options);
    proxy.start();
    const ibrc::Ring& ring = proxy.rings()[0];
    ibrc::Fields put;
    put.op = ibrc::Op::put, put.peer = 1;
    ibrc::publish(ring, ibrc::reserve(ring, 1).first, put);
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (!raised && Clock::now() < deadline) std::this_thread::yield();
    CHECK_EQ(raised.load(), 1);
    CHECK(has_failed(record));
    CHECK(record.code == Code::internal);
    bool drained = true;
    CHECK(seconds_of([&] { drained = proxy.stop(60); }) < 5);
    CHECK(!drained);
  }
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
