#include "wire/cuda.h"

#include <algorithm>
#include <array>
#include <vector>

#include "error.h"
#include "wire/completions.h"
#include "wire/cuda_memory.h"
#include "wire/cuda_pinned.h"
#include "wire/regions.h"

namespace gin::wire {
namespace {

using cuda::Address;
using cuda::driver;

bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

Address address_of(const void* pointer) { return Address(uintptr_t(pointer)); }

// The GPU has few queues for its streams, eight by default, and a stream that shares one with a kernel waits for it.
constexpr size_t most_streams = 4;

struct Stream {
  cuda::UrgentStream stream;
  cuda::Detour within{stream};  // for copies within this GPU
};

// The streams of all endpoints of a fabric. They are made with it: once a kernel waits, making one could wait for that kernel.
class Streams {
 public:
  Streams() = default;
  ~Streams() {
    for (const Stream& each : streams_)
      if (!each.stream.drain())
        for (const auto& words : words_) words->leave();
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  Stream& operator[](size_t index) { return streams_[index % most_streams]; }

  // Words that copies in the streams may reach after their endpoint has gone: they live as long as the streams.
  cuda::PinnedWords& words(uint64_t count) {
    words_.push_back(std::make_unique<cuda::PinnedWords>(count));
    return *words_.back();
  }

 private:
  std::vector<std::unique_ptr<cuda::PinnedWords>> words_;  // outlive the streams
  std::array<Stream, most_streams> streams_;
};

constexpr uint32_t nobody = UINT32_MAX;

// A request that has been taken and not yet polled, or none.
struct Pending {
  uint64_t sequence = 0;  // of the mark after its copy
  Completion end{};
  uint64_t* signal = nullptr;  // nullptr for none
  uint64_t add = 0;
  uint32_t next = nobody;  // in its lane, or of those that are free
};

// Copies that have been taken and are to go into a lane's stream. Given to the driver at once they take a quarter of the time
// that they take one by one (benchmarks/copies.cu), and overlap: requests between two fences may be done in any order.
struct Batch {
  static constexpr size_t most = 32;

  void add(Address target, Address source, uint64_t size, uint32_t request) {
    to[count] = target, from[count] = source, bytes[count] = size, pending[count] = request;
    ++count;
  }

  size_t count = 0;
  std::array<Address, most> to{}, from{};
  std::array<size_t, most> bytes{};
  std::array<uint32_t, most> pending{};  // by copy: its request
};

// Everything to some peers. Requests complete in order.
struct Lane {
  // Bytes after which those that have been taken are put into the stream and marked: the first one's signal waits for the
  // last one's bytes.
  static constexpr uint64_t most_bytes = 8 << 20;

  bool full() const { return batch.count == Batch::most || bytes >= most_bytes; }

  Stream* stream = nullptr;
  Batch batch;               // empty but within a post
  uint64_t bytes = 0;        // of the batch, and of what has been copied within the GPU since the last one
  uint64_t* done = nullptr;  // the last mark that the GPU has passed
  uint64_t marked = 0;       // the last mark in the stream
  bool unmarked = false;     // copies come after it
  bool active = false;
  uint32_t first = nobody, last = nobody;  // of what is pending
};

class CudaEndpoint final : public Endpoint {
 public:
  // `number`: how many endpoints of the fabric there were before.
  CudaEndpoint(const Regions& regions, Streams& streams, size_t number, uint32_t size, uint64_t queue,
               cuda::Context context)
      : regions_(regions),
        context_(context),
        lanes_(std::min<size_t>(size, most_streams)),
        pending_(queue),
        marks_(streams.words(lanes_.size() * line)),
        staged_(streams.words(queue)) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].stream = &streams[number + i];
      lanes_[i].done = marks_ + i * line;
    }
    active_.reserve(lanes_.size());
    for (uint32_t i = uint32_t(queue); i-- > 0;) give_back(i);
  }

  size_t post(const Request* requests, size_t count) override {
    const int entered = cuda::enter(context_);
    size_t taken = 0;
    while (taken < count && free_ != nobody) take(requests[taken++], entered);
    issue_all();
    return taken;
  }

  size_t poll(Completion* completions, size_t count) override {
    size_t got = 0;
    for (size_t i = 0; i < active_.size() && got < count;) {
      Lane& lane = *active_[i];
      got += reap(lane, completions + got, count - got);
      mark(lane);
      if (lane.first == nobody) {
        lane.active = false;
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
    if (got || active_.empty()) {
      idle_polls_ = 0;
    } else if (++idle_polls_ % polls_per_query == 0) {
      find_broken();
    }
    return got;
  }

  // A copy is complete when it has settled.
  bool settled() override { return true; }

 private:
  static constexpr uint64_t line = 8;  // words
  static constexpr uint32_t polls_per_query = 4096;

  void take(const Request& r, int entered) {
    const uint32_t index = free_;
    Pending& pending = pending_[index];
    free_ = pending.next;
    if (r.verb == Verb::fence) issue_all();
    Lane& lane = lane_of(r.verb == Verb::fence ? 0 : r.peer);
    if (lane.bytes + r.bytes > Lane::most_bytes) issue(lane);
    pending = {lane.marked, {r.token, Code::ok, r.peer, uint64_t(entered)}, nullptr, r.signal_add, nobody};
    Code code = entered == cuda::success ? Code::ok : Code::remote;
    if (code == Code::ok && r.has_signal) code = find_word(r, pending.signal);
    if (code == Code::ok) code = move(r, lane, index);
    if (code != Code::ok) pending.end.code = code, pending.signal = nullptr;
    pending.sequence += lane.unmarked;
    (lane.first == nobody ? lane.first : pending_[lane.last].next) = index;
    lane.last = index;
    if (lane.full()) issue(lane);
  }

  void give_back(uint32_t index) {
    pending_[index].next = free_;
    free_ = index;
  }

  // Always the same for one peer, whose signals are in order thereby.
  Lane& lane_of(uint32_t peer) {
    Lane& lane = lanes_[peer % lanes_.size()];
    if (!lane.active) {
      lane.active = true;
      active_.push_back(&lane);
    }
    return lane;
  }

  Code move(const Request& r, Lane& lane, uint32_t index) {
    switch (r.verb) {
      case Verb::put:
      case Verb::get:
        return copy(r, lane, index);
      case Verb::value:
        return value(r, lane, index);
      case Verb::signal:
      case Verb::fence:  // what came before is in the streams
        return Code::ok;
      case Verb::atomic:
        return Code::unsupported;
    }
    return Code::range;
  }

  Code copy(const Request& r, Lane& lane, uint32_t index) {
    const Region* local = regions_.find(r.local_region);
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!local || !remote || !inside(r.local_offset, r.bytes, local->bytes) ||
        !inside(r.remote_offset, r.bytes, remote->bytes))
      return Code::range;
    if (r.bytes == 0) return Code::ok;
    if (!remote->mapped) return Code::unsupported;
    const Address here = address_of(local->base + r.local_offset), there = address_of(remote->mapped + r.remote_offset);
    const Address to = r.verb == Verb::put ? there : here, from = r.verb == Verb::put ? here : there;
    if (local->on_device && remote->on_device) return copy_within(lane, to, from, r.bytes, index);
    add(lane, to, from, r.bytes, index);
    return Code::ok;
  }

  Code value(const Request& r, Lane& lane, uint32_t index) {
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!remote || r.bytes < 1 || r.bytes > 8 || !inside(r.remote_offset, r.bytes, remote->bytes)) return Code::range;
    if (!remote->mapped) return Code::unsupported;
    uint64_t* staged = staged_ + index;  // the request's own until it has been polled
    *staged = r.value;
    add(lane, address_of(remote->mapped + r.remote_offset), address_of(staged), r.bytes, index);
    return Code::ok;
  }

  Code copy_within(Lane& lane, Address to, Address from, uint64_t bytes, uint32_t index) {
    const int result = lane.stream->within.copy(to, from, bytes);
    lane.unmarked = true;
    lane.bytes += bytes;
    pending_[index].end.detail = uint64_t(result);
    return result == cuda::success ? Code::ok : Code::remote;
  }

  void add(Lane& lane, Address to, Address from, uint64_t bytes, uint32_t index) {
    lane.batch.add(to, from, bytes, index);
    lane.unmarked = true;
    lane.bytes += bytes;
  }

  void issue_all() {
    for (Lane* lane : active_) issue(*lane);
  }

  // Puts what has been taken into the stream. Where the driver refuses, one by one: what cannot be copied fails alone.
  void issue(Lane& lane) {
    Batch& b = lane.batch;
    if (b.count < 2 ||
        cuda::copy_all(b.to.data(), b.from.data(), b.bytes.data(), b.count, lane.stream->stream.get()) != cuda::success)
      for (size_t i = 0; i < b.count; ++i) issue_one(lane, i);
    b.count = lane.bytes = 0;
    mark(lane);
  }

  void issue_one(Lane& lane, size_t i) {
    const Batch& b = lane.batch;
    const uint32_t index = b.pending[i];
    int result = cuda::not_supported;
    if (b.from[i] == address_of(staged_ + index)) result = write_word(lane, b.to[i], *(staged_ + index), b.bytes[i]);
    if (result != cuda::success) result = driver().copy(b.to[i], b.from[i], b.bytes[i], lane.stream->stream.get());
    if (result != cuda::success) fail(pending_[index], result);
  }

  // A value by the stream itself, where the place is even and the device has such writes.
  int write_word(Lane& lane, Address to, uint64_t value, uint64_t bytes) {
    if (bytes == 8 && to % 8 == 0) return driver().write64(lane.stream->stream.get(), to, value, cuda::with_barrier);
    if (bytes == 4 && to % 4 == 0)
      return driver().write32(lane.stream->stream.get(), to, uint32_t(value), cuda::with_barrier);
    return cuda::not_supported;
  }

  void fail(Pending& pending, int error) {
    pending.signal = nullptr;
    if (pending.end.code == Code::ok) pending.end.code = Code::remote, pending.end.detail = uint64_t(error);
  }

  Code find_word(const Request& r, uint64_t*& word) const {
    const PeerRegion* remote = regions_.find(r.signal_region, r.peer);
    if (!remote || r.signal_offset % 8 != 0 || !inside(r.signal_offset, 8, remote->bytes)) return Code::range;
    if (!remote->mapped) return Code::unsupported;
    word = reinterpret_cast<uint64_t*>(remote->mapped + r.signal_offset);
    return Code::ok;
  }

  // One mark at a time is under way: each stands between copies that would otherwise follow one another at once, for the
  // engine that copies and the one that writes words wait for each other there.
  void mark(Lane& lane) {
    if (!lane.unmarked || __atomic_load_n(lane.done, __ATOMIC_ACQUIRE) != lane.marked) return;
    lane.unmarked = false;
    int result = cuda::enter(context_);
    if (result == cuda::success)
      result = driver().write64(lane.stream->stream.get(), address_of(lane.done), lane.marked + 1, cuda::with_barrier);
    if (result == cuda::success) {
      ++lane.marked;
    } else {
      break_lane(lane, result);
    }
  }

  size_t reap(Lane& lane, Completion* completions, size_t count) {
    const uint64_t done = __atomic_load_n(lane.done, __ATOMIC_ACQUIRE);
    size_t got = 0;
    while (got < count && lane.first != nobody && pending_[lane.first].sequence <= done) {
      const uint32_t index = lane.first;
      const Pending& first = pending_[index];
      if (first.signal) __atomic_fetch_add(first.signal, first.add, __ATOMIC_RELEASE);
      completions[got++] = first.end;
      lane.first = first.next;
      give_back(index);
    }
    return got;
  }

  // A lost device passes no more marks.
  void find_broken() {
    cuda::ignore_captures();
    const int entered = cuda::enter(context_);
    for (Lane* lane : active_) {
      const int result = entered == cuda::success ? driver().query_stream(lane->stream->stream.get()) : entered;
      if (result != cuda::success && result != cuda::not_ready) break_lane(*lane, result);
    }
  }

  void break_lane(const Lane& lane, int error) {
    for (uint32_t i = lane.first; i != nobody; i = pending_[i].next) {
      pending_[i].sequence = 0;
      fail(pending_[i], error);
    }
  }

  const Regions& regions_;
  const cuda::Context context_;
  std::vector<Lane> lanes_;
  std::vector<Pending> pending_;
  cuda::PinnedWords &marks_, &staged_;
  std::vector<Lane*> active_;  // those with something pending
  uint32_t free_ = nobody;     // the first place for what is pending
  uint32_t idle_polls_ = 0;
};

class CudaFabric final : public Fabric {
 public:
  CudaFabric(uint32_t rank, uint32_t size, uint64_t max_message, uint64_t queue)
      : context_(cuda::current_context()),
        regions_(rank, size, cuda::current_gpu()),
        size_(size),
        max_message_(max_message),
        queue_(queue) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return regions_.add(region, base, bytes, cuda::is_gpu_memory(*cuda::memory_api(), base));
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) override {
    if (!mapped)
      throw Error(Error::Kind::unsupported, "region " + std::to_string(region) + " of rank " + std::to_string(peer) +
                                                " is not mapped here, which the cuda wire needs");
    regions_.import(region, peer, exported, mapped);
  }
  void remove_region(uint32_t region) override { regions_.remove(region); }
  std::unique_ptr<Endpoint> endpoint() override {
    return std::make_unique<CudaEndpoint>(regions_, streams_, endpoints_++, size_, queue_, context_);
  }
  uint64_t max_message() const override { return max_message_; }

 private:
  cuda::Context context_;
  Regions regions_;
  uint32_t size_;
  uint64_t max_message_, queue_;
  Streams streams_;
  size_t endpoints_ = 0;
};

}  // namespace

std::unique_ptr<Fabric> make_cuda(uint32_t rank, uint32_t size, const Options& options) {
  return std::make_unique<CudaFabric>(rank, size, option(options, "max_message", default_max_message, 1, most_message),
                                      option(options, "queue", default_queue, 1, most_queue));
}

}  // namespace gin::wire
