// gin_verbs_path COUNT: where an 8-byte put with a signal spends its time between a kernel and the peer's wait, over the
// verbs wire, between two processes of one host. Each has a ring, a progress thread and the wire; this program takes the
// kernel's place. Prints medians in microseconds:
//
//   push        writing the descriptor
//   take        until the engine hands the request to the wire
//   post        the wire's post: the device's doorbell
//   flight      until the peer's wait has seen the signal
//   one_way     the sum of these, one trip
//   completion  beside `flight`: from the post until the wire has completed the request here
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "baseline/pair.h"
#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

namespace {

using namespace gin;
using Clock = std::chrono::steady_clock;  // one clock for both processes

constexpr double patience = 30;  // seconds
constexpr unsigned longest_seconds = 600;
constexpr uint32_t data = 1;
constexpr uint64_t data_bytes = 4096;

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

// When the engine last posted and last heard of a completion.
struct Stamps {
  std::atomic<int64_t> taken{0}, posted{0}, completed{0};
};

class StampedEndpoint final : public wire::Endpoint {
 public:
  StampedEndpoint(std::unique_ptr<Endpoint> inner, Stamps& stamps) : inner_(std::move(inner)), stamps_(stamps) {}

  size_t post(const wire::Request* requests, size_t count) override {
    const int64_t taken = now();
    const size_t posted = inner_->post(requests, count);
    stamps_.taken = taken, stamps_.posted = now();
    return posted;
  }
  size_t poll(wire::Completion* completions, size_t count) override {
    const size_t got = inner_->poll(completions, count);
    if (got) stamps_.completed = now();
    return got;
  }
  bool settled() override { return inner_->settled(); }
  void abandon(uint32_t peer) override { inner_->abandon(peer); }

 private:
  std::unique_ptr<Endpoint> inner_;
  Stamps& stamps_;
};

class StampedFabric final : public wire::Fabric {
 public:
  StampedFabric(std::unique_ptr<Fabric> inner, Stamps& stamps) : inner_(std::move(inner)), stamps_(stamps) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return inner_->add_region(region, base, bytes);
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) override {
    inner_->import_region(region, peer, exported, mapped);
  }
  void remove_region(uint32_t region) override { inner_->remove_region(region); }
  std::unique_ptr<wire::Endpoint> endpoint() override {
    return std::make_unique<StampedEndpoint>(inner_->endpoint(), stamps_);
  }
  uint64_t max_message() const override { return inner_->max_message(); }
  std::string address(uint32_t peer) override { return inner_->address(peer); }
  void connect(uint32_t peer, const std::string& address) override { inner_->connect(peer, address); }
  void probe(double seconds) override { inner_->probe(seconds); }
  bool leave(double seconds) override { return inner_->leave(seconds); }

 private:
  std::unique_ptr<Fabric> inner_;
  Stamps& stamps_;
};

// One process: its memory, ring, progress thread and wire.
class Side {
 public:
  Side(uint32_t rank, int in, int out)
      : rank_(rank),
        in_(in),
        out_(out),
        words_(layout_.bytes() / 8),
        bytes_(data_bytes),
        fabric_(std::make_shared<StampedFabric>(wire::make_fabric("verbs", rank, 2), stamps_)),
        proxy_(fabric_, layout_, 0, record_, nullptr, {}) {
    const uint32_t peer = 1 - rank;
    fabric_->import_region(0, peer, exchange(fabric_->add_region(0, words_.data(), layout_.bytes())), nullptr);
    fabric_->import_region(data, peer, exchange(fabric_->add_region(data, bytes_.data(), data_bytes)), nullptr);
    fabric_->connect(peer, exchange(fabric_->address(peer)));
    fabric_->connect(rank, fabric_->address(rank));
    exchange("connected");
    fabric_->probe(patience);
    exchange("probed");
    proxy_.start();
  }

  ~Side() { proxy_.stop(1); }

  std::string exchange(const std::string& text) {
    char theirs[1024] = {}, mine[1024] = {};
    std::strncpy(mine, text.c_str(), sizeof(mine) - 1);
    if (write(out_, mine, sizeof(mine)) != sizeof(mine) || read(in_, theirs, sizeof(theirs)) != sizeof(theirs))
      throw Error(Error::Kind::remote, "the other process has ended");
    return theirs;
  }

  void push() {
    ibrc::Fields put;
    put.op = ibrc::Op::put;
    put.peer = 1 - rank_;
    put.dst_window = put.src_window = data;
    put.bytes = 8;
    put.has_signal = true;
    ibrc::publish(ring(), ibrc::reserve(ring(), 1).first, put);
  }

  void wait_signal(uint64_t least) { wait(words_[layout_.native(0, 0) / 8], least); }
  void wait_retired(uint64_t ticket) { wait(ring().progress->retired, ticket); }
  const Stamps& stamps() const { return stamps_; }

  // Once both sides have nothing more to send.
  void leave() {
    proxy_.stop(patience);
    fabric_->leave(patience);
  }

 private:
  const ibrc::Ring& ring() const { return proxy_.rings()[0]; }

  void wait(const uint64_t& word, uint64_t least) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    for (uint32_t looks = 1; ibrc::load_acquire(&word) < least; ++looks) {
      if (looks % 64) continue;
      if (proxy::has_failed(record_) || Clock::now() > deadline)
        throw Error(Error::Kind::remote, "a put did not arrive: code " + std::to_string(uint32_t(record_.code)));
      sched_yield();
    }
  }

  const ControlLayout layout_{1, 1, 2};
  uint32_t rank_;
  int in_, out_;
  Record record_{};
  Stamps stamps_;
  std::vector<uint64_t> words_;
  std::vector<char> bytes_;
  std::shared_ptr<StampedFabric> fabric_;
  proxy::Proxy proxy_;
};

struct Stages {
  std::vector<double> push, take, post, flight, one_way, completion;
};

void say(const char* name, std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  std::printf("%s %.3f\n", name, samples[samples.size() / 2]);
}

// `seen` is shared: when the other side has seen each signal.
void measure(Side& side, uint64_t count, const std::atomic<int64_t>* seen) {
  Stages s;
  const auto add = [](std::vector<double>& to, int64_t from, int64_t until) {
    to.push_back(double(std::max<int64_t>(until - from, 0)) / 1e3);
  };
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t start = now();
    side.push();
    const int64_t pushed = now();
    side.wait_signal(i + 1);
    side.wait_retired(i + 1);
    const Stamps& at = side.stamps();
    add(s.push, start, pushed);
    add(s.take, pushed, at.taken);
    add(s.post, at.taken, at.posted);
    add(s.flight, at.posted, seen[i]);
    add(s.one_way, start, seen[i]);
    add(s.completion, at.posted, at.completed);
  }
  say("push", s.push);
  say("take", s.take);
  say("post", s.post);
  say("flight", s.flight);
  say("one_way", s.one_way);
  say("completion", s.completion);
}

void answer(Side& side, uint64_t count, std::atomic<int64_t>* seen) {
  for (uint64_t i = 0; i < count; ++i) {
    side.wait_signal(i + 1);
    seen[i] = now();
    side.push();
  }
  side.wait_retired(count);
}

int run(uint32_t rank, int in, int out, uint64_t count, std::atomic<int64_t>* seen) {
  try {
    Side side(rank, in, out);
    if (rank == 0)
      measure(side, count, seen);
    else
      answer(side, count, seen);
    std::fflush(stdout);
    side.exchange("done");
    side.leave();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_verbs_path: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t count = argc == 2 ? std::strtoull(argv[1], nullptr, 10) : 0;
  if (count < 1 || count > 10'000'000) {
    std::fprintf(stderr, "usage: gin_verbs_path COUNT\n");
    return 2;
  }
  void* shared =
      mmap(nullptr, count * sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* seen = static_cast<std::atomic<int64_t>*>(shared);
  const auto side = [&](uint32_t rank, int in, int out) { return run(rank, in, out, count, seen); };
  return baseline::run_pair(side, longest_seconds);
}
