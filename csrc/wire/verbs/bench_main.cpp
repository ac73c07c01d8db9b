// The verbs wire alone, between two processes of one host, as perftest's tools measure it:
//
//   gin_verbs_bench latency|notify|bandwidth|signal BYTES COUNT
//
// latency: half the round trip of puts that the other side sees in its memory; notify: the same of puts with a signal, by the
// signal; bandwidth: puts in batches of 16, 128 under way; signal: from posting an addition to its completion. Prints
// "median_us <number>" or "GBps <number>".
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "baseline/pair.h"
#include "error.h"
#include "wire/verbs/verbs.h"

namespace {

using namespace gin::wire;
using Clock = std::chrono::steady_clock;

constexpr uint32_t control = 0, data = 1;
constexpr uint64_t most_bytes = 1 << 23;
constexpr size_t batch = 16, window = 128;
constexpr unsigned longest_seconds = 600;

double microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

class Side {
 public:
  Side(uint32_t rank, int in, int out)
      : rank_(rank), in_(in), out_(out), fabric_(make_fabric("verbs", rank, 2)), endpoint_(fabric_->endpoint()) {
    bytes_ =
        static_cast<char*>(mmap(nullptr, 2 * most_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (bytes_ == MAP_FAILED) throw gin::Error(gin::Error::Kind::memory, "no memory");
    const std::string control_name = fabric_->add_region(control, words_, sizeof(words_));
    const std::string data_name = fabric_->add_region(data, bytes_, 2 * most_bytes);
    fabric_->import_region(control, 1 - rank, exchange(control_name), nullptr);
    fabric_->import_region(data, 1 - rank, exchange(data_name), nullptr);
    fabric_->connect(1 - rank, exchange(fabric_->address(1 - rank)));
    fabric_->connect(rank, fabric_->address(rank));
    exchange("connected");
    fabric_->probe(20);
    exchange("probed");
  }

  std::string exchange(const std::string& text) {
    char theirs[1024] = {}, mine[1024] = {};
    std::strncpy(mine, text.c_str(), sizeof(mine) - 1);
    if (write(out_, mine, sizeof(mine)) != sizeof(mine) || read(in_, theirs, sizeof(theirs)) != sizeof(theirs))
      throw gin::Error(gin::Error::Kind::remote, "the other process has ended");
    return theirs;
  }

  // Sources are in the first half of the memory, targets in the second.
  void put(uint64_t nbytes, size_t count = 1, bool with_signal = false) {
    Request requests[batch] = {};
    for (Request& r : requests) {
      r.verb = Verb::put;
      r.peer = 1 - rank_;
      r.remote_region = r.local_region = data;
      r.remote_offset = most_bytes;
      r.bytes = nbytes;
      r.has_signal = with_signal;
      r.signal_region = control;
      r.signal_add = 1;
    }
    for (size_t posted = 0; posted < count; reap()) {
      const size_t now = endpoint_->post(requests, count - posted);
      posted += now;
      under_way_ += now;
    }
  }

  void signal() {
    Request r{};
    r.verb = Verb::signal;
    r.peer = 1 - rank_;
    r.has_signal = true;
    r.signal_region = control;
    r.signal_add = 1;
    endpoint_->post(&r, 1);
    ++under_way_;
  }

  void reap() {
    Completion c[batch];
    const size_t n = endpoint_->poll(c, batch);
    for (size_t i = 0; i < n; ++i)
      if (c[i].code != gin::Code::ok) throw gin::Error(gin::Error::Kind::remote, verbs_detail(c[i].detail));
    under_way_ -= n;
  }

  size_t under_way() const { return under_way_; }
  uint64_t signalled() const { return __atomic_load_n(&words_[0], __ATOMIC_ACQUIRE); }
  volatile char& sent(uint64_t i) { return bytes_[i]; }
  volatile char& arrived(uint64_t i) { return bytes_[most_bytes + i]; }
  void leave() { fabric_->leave(5); }

 private:
  uint32_t rank_;
  int in_, out_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Endpoint> endpoint_;
  char* bytes_;
  alignas(64) uint64_t words_[8] = {};
  size_t under_way_ = 0;
};

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : samples[samples.size() / 2];
}

void latency(Side& side, uint32_t rank, uint64_t nbytes, uint64_t count) {
  std::vector<double> samples;
  for (uint64_t i = 1; i <= count; ++i) {
    const Clock::time_point start = Clock::now();
    const char mark = char(i % 100 + 1);
    if (rank == 1)
      while (side.arrived(nbytes - 1) != mark) side.reap();
    side.sent(nbytes - 1) = mark;
    side.put(nbytes);
    if (rank == 0)
      while (side.arrived(nbytes - 1) != mark) side.reap();
    samples.push_back(microseconds(Clock::now() - start) / 2);
  }
  while (side.under_way()) side.reap();
  if (rank == 0) std::printf("median_us %.3f\n", median(samples));
}

void notify(Side& side, uint32_t rank, uint64_t nbytes, uint64_t count) {
  std::vector<double> samples;
  for (uint64_t i = 1; i <= count; ++i) {
    const Clock::time_point start = Clock::now();
    if (rank == 1)
      while (side.signalled() != i) side.reap();
    side.put(nbytes, 1, true);
    if (rank == 0)
      while (side.signalled() != i) side.reap();
    samples.push_back(microseconds(Clock::now() - start) / 2);
  }
  while (side.under_way()) side.reap();
  if (rank == 0) std::printf("median_us %.3f\n", median(samples));
}

void bandwidth(Side& side, uint32_t rank, uint64_t nbytes, uint64_t count) {
  if (rank == 1) return;
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < count; i += batch) {
    while (side.under_way() > window - batch) side.reap();
    side.put(nbytes, std::min<uint64_t>(batch, count - i));
  }
  while (side.under_way()) side.reap();
  std::printf("GBps %.6f\n", double(nbytes * count) / microseconds(Clock::now() - start) / 1e3);
}

void signals(Side& side, uint32_t rank, uint64_t, uint64_t count) {
  if (rank == 1) return;
  std::vector<double> samples;
  for (uint64_t i = 0; i < count; ++i) {
    const Clock::time_point start = Clock::now();
    side.signal();
    while (side.under_way()) side.reap();
    samples.push_back(microseconds(Clock::now() - start));
  }
  std::printf("median_us %.3f\n", median(samples));
}

int run(uint32_t rank, int in, int out, const std::string& test, uint64_t nbytes, uint64_t count) {
  try {
    Side side(rank, in, out);
    (test == "latency"     ? latency
     : test == "notify"    ? notify
     : test == "bandwidth" ? bandwidth
                           : signals)(side, rank, nbytes, count);
    std::fflush(stdout);
    side.exchange("done");
    side.leave();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_verbs_bench: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string test = argc == 4 ? argv[1] : "";
  const uint64_t nbytes = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const bool known = test == "latency" || test == "notify" || test == "bandwidth" || test == "signal";
  if (!known || nbytes < 1 || nbytes > most_bytes) {
    std::fprintf(stderr, "usage: gin_verbs_bench latency|notify|bandwidth|signal BYTES COUNT\n");
    return 2;
  }
  const uint64_t count = std::strtoull(argv[3], nullptr, 10);
  const auto side = [&](uint32_t rank, int in, int out) { return run(rank, in, out, test, nbytes, count); };
  return gin::baseline::run_pair(side, longest_seconds);
}
