#include "wire/cuda.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "error.h"
#include "wire/completions.h"
#include "wire/cuda_driver.h"
#include "wire/regions.h"

namespace gin::wire {
namespace {

using cuda::Address;
using cuda::driver;

bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

Address address_of(const void* pointer) { return Address(uintptr_t(pointer)); }

// Zeroed words that both the CPU and the GPU see.
class PinnedWords {
 public:
  explicit PinnedWords(uint64_t count) {
    void* memory = nullptr;
    cuda::check(driver().allocate_host(&memory, count * 8, cuda::portable_mapped), "allocating pinned memory");
    words_ = static_cast<uint64_t*>(memory);
    std::fill_n(words_, count, 0);
  }
  ~PinnedWords() {
    const cuda::Visit visit(context_);
    driver().free_host(words_);
  }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;

  uint64_t* operator+(uint64_t index) { return words_ + index; }

 private:
  const cuda::Context context_ = cuda::current_context();
  uint64_t* words_;
};

// The GPU has few queues for its streams, eight by default, and a stream that shares one with a kernel waits for it.
constexpr size_t most_streams = 4;
constexpr uint64_t line = 8;  // words

// Copies to some peers, by all contexts. Marks in the stream tell how far the GPU is. They cost the copies time, as the engine
// that copies and the one that writes words wait for each other there: one is under way at a time, whoever puts it, but behind
// so many copies or bytes there always is one, so that nobody's end is told much later than it comes.
class Stream {
 public:
  explicit Stream(uint64_t* done) : done_(done), stream_(cuda::urgent_stream()) {}
  ~Stream() {
    const cuda::Visit visit(context_);
    driver().destroy_stream(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The last mark that the GPU has passed.
  uint64_t done() const { return __atomic_load_n(done_, __ATOMIC_ACQUIRE); }
  int query() const { return driver().query_stream(stream_); }

  // `put(stream)` puts so many bytes into the stream. Returns its error; `sequence` becomes the mark that will come after them.
  template <class Put>
  int add(const Put& put, uint64_t bytes, uint64_t& sequence) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int result = put(stream_);
    ++unmarked_;
    unmarked_bytes_ += bytes;
    sequence = marked_ + 1;
    if (unmarked_ >= most_unmarked || unmarked_bytes_ >= most_unmarked_bytes) write_mark();  // if not now, by `mark`
    return result;
  }

  // Puts a mark where one is due. Returns the driver's error. Does not wait for another thread that has the stream.
  int mark() {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || unmarked_ == 0 || done() != marked_) return cuda::success;
    return write_mark();
  }

 private:
  static constexpr uint32_t most_unmarked = 16;
  static constexpr uint64_t most_unmarked_bytes = 32 << 20;

  int write_mark() {
    if (const int entered = cuda::enter(context_)) return entered;
    const int result = driver().write64(stream_, address_of(done_), marked_ + 1, cuda::with_barrier);
    if (result == cuda::success) ++marked_, unmarked_ = 0, unmarked_bytes_ = 0;
    return result;
  }

  const cuda::Context context_ = cuda::current_context();
  uint64_t* const done_;
  const cuda::Stream stream_;
  std::mutex mutex_;
  uint64_t marked_ = 0;    // the last mark in the stream
  uint32_t unmarked_ = 0;  // copies that were put into the stream after it
  uint64_t unmarked_bytes_ = 0;
};

// The streams of all endpoints of a fabric. They are made with it: once a kernel waits, making one could wait for that kernel.
class Streams {
 public:
  Stream& operator[](size_t index) { return streams_[index % most_streams]; }

  // Words that copies in the streams may reach after their endpoint has gone: they live as long as the streams.
  PinnedWords& words(uint64_t count) {
    words_.push_back(std::make_unique<PinnedWords>(count));
    return *words_.back();
  }

 private:
  std::vector<std::unique_ptr<PinnedWords>> words_;  // outlive the streams
  PinnedWords marks_{most_streams * line};
  std::array<Stream, most_streams> streams_{Stream(marks_ + 0 * line), Stream(marks_ + 1 * line),
                                            Stream(marks_ + 2 * line), Stream(marks_ + 3 * line)};
};

constexpr uint32_t nobody = UINT32_MAX;

// A request that has been taken and not yet polled, or none.
struct Pending {
  uint64_t sequence = 0;  // of the mark after its copy; what has none ends with what its lane has before it
  Completion end{};
  uint64_t* signal = nullptr;  // nullptr for none
  uint64_t add = 0;
  uint32_t next = nobody;  // in its lane, or of those that are free
};

// Everything of one endpoint to some peers, in order.
struct Lane {
  Stream* stream = nullptr;
  bool active = false;
  uint32_t first = nobody, last = nobody;  // of what is pending
};

class CudaEndpoint final : public Endpoint {
 public:
  CudaEndpoint(const Regions& regions, Streams& streams, uint32_t size, uint64_t queue, cuda::Context context)
      : regions_(regions),
        context_(context),
        lanes_(std::min<size_t>(size, most_streams)),
        pending_(queue),
        staged_(streams.words(queue)) {
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].stream = &streams[i];
    active_.reserve(lanes_.size());
    for (uint32_t i = uint32_t(queue); i-- > 0;) give_back(i);
  }

  size_t post(const Request* requests, size_t count) override {
    const int entered = cuda::enter(context_);
    size_t taken = 0;
    while (taken < count && free_ != nobody) take(requests[taken++], entered);
    for (Lane* lane : active_) mark(*lane);
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
  static constexpr uint32_t polls_per_query = 4096;

  void take(const Request& r, int entered) {
    const uint32_t index = free_;
    Pending& pending = pending_[index];
    free_ = pending.next;
    Lane& lane = lane_of(r.verb == Verb::fence ? 0 : r.peer);
    pending = {0, {r.token, Code::ok, r.peer, uint64_t(entered)}, nullptr, r.signal_add, nobody};
    Code code = entered == cuda::success ? Code::ok : Code::remote;
    if (code == Code::ok && r.has_signal) code = find_word(r, pending.signal);
    if (code == Code::ok) code = move(r, lane, index);
    if (code != Code::ok) pending.end.code = code, pending.signal = nullptr;
    (lane.first == nobody ? lane.first : pending_[lane.last].next) = index;
    lane.last = index;
  }

  void give_back(uint32_t index) {
    pending_[index].next = free_;
    free_ = index;
  }

  // Always the same for one peer, whose requests are in order thereby.
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
        return copy(r, lane, pending_[index]);
      case Verb::value:
        return value(r, lane, pending_[index], staged_ + index);
      case Verb::signal:
      case Verb::fence:  // a lane is in order
        return Code::ok;
      case Verb::atomic:
        return Code::unsupported;
    }
    return Code::range;
  }

  Code copy(const Request& r, Lane& lane, Pending& pending) {
    const Region* local = regions_.find(r.local_region);
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!local || !remote || !inside(r.local_offset, r.bytes, local->bytes) ||
        !inside(r.remote_offset, r.bytes, remote->bytes))
      return Code::range;
    if (r.bytes == 0) return Code::ok;
    if (!remote->mapped) return Code::unsupported;
    const Address here = address_of(local->base + r.local_offset), there = address_of(remote->mapped + r.remote_offset);
    const bool outward = r.verb == Verb::put;
    const Address to = outward ? there : here, from = outward ? here : there;
    return issue(lane, pending, r.bytes, [&](cuda::Stream stream) { return driver().copy(to, from, r.bytes, stream); });
  }

  // `staged` is the request's own until it has been polled.
  Code value(const Request& r, Lane& lane, Pending& pending, uint64_t* staged) {
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!remote || r.bytes < 1 || r.bytes > 8 || !inside(r.remote_offset, r.bytes, remote->bytes)) return Code::range;
    if (!remote->mapped) return Code::unsupported;
    const Address there = address_of(remote->mapped + r.remote_offset);
    return issue(lane, pending, r.bytes, [&](cuda::Stream stream) {
      int result = -1;
      if (r.bytes == 8 && there % 8 == 0) result = driver().write64(stream, there, r.value, cuda::with_barrier);
      if (r.bytes == 4 && there % 4 == 0)
        result = driver().write32(stream, there, uint32_t(r.value), cuda::with_barrier);
      if (result == cuda::success) return result;
      *staged = r.value;  // the place is odd, or the device has no such writes
      return driver().copy(there, address_of(staged), r.bytes, stream);
    });
  }

  template <class Put>
  Code issue(Lane& lane, Pending& pending, uint64_t bytes, const Put& put) {
    const int result = lane.stream->add(put, bytes, pending.sequence);
    pending.end.detail = uint64_t(result);
    return result == cuda::success ? Code::ok : Code::remote;
  }

  Code find_word(const Request& r, uint64_t*& word) const {
    const PeerRegion* remote = regions_.find(r.signal_region, r.peer);
    if (!remote || r.signal_offset % 8 != 0 || !inside(r.signal_offset, 8, remote->bytes)) return Code::range;
    if (!remote->mapped) return Code::unsupported;
    word = reinterpret_cast<uint64_t*>(remote->mapped + r.signal_offset);
    return Code::ok;
  }

  void mark(Lane& lane) {
    if (lane.first == nobody) return;
    if (const int result = lane.stream->mark()) break_lane(lane, result);
  }

  size_t reap(Lane& lane, Completion* completions, size_t count) {
    const uint64_t done = lane.stream->done();
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
    const int entered = cuda::enter(context_);
    for (Lane* lane : active_) {
      const int result = entered == cuda::success ? lane->stream->query() : entered;
      if (result != cuda::success && result != cuda::not_ready) break_lane(*lane, result);
    }
  }

  void break_lane(const Lane& lane, int error) {
    for (uint32_t i = lane.first; i != nobody; i = pending_[i].next) {
      Pending& pending = pending_[i];
      pending.sequence = 0;
      pending.signal = nullptr;
      if (pending.end.code == Code::ok) pending.end.code = Code::remote, pending.end.detail = uint64_t(error);
    }
  }

  const Regions& regions_;
  const cuda::Context context_;
  std::vector<Lane> lanes_;
  std::vector<Pending> pending_;
  PinnedWords& staged_;
  std::vector<Lane*> active_;  // those with something pending
  uint32_t free_ = nobody;     // the first place for what is pending
  uint32_t idle_polls_ = 0;
};

class CudaFabric final : public Fabric {
 public:
  CudaFabric(uint32_t rank, uint32_t size, uint64_t max_message, uint64_t queue)
      : regions_(rank, size),
        size_(size),
        max_message_(max_message),
        queue_(queue),
        context_(cuda::current_context()) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return regions_.add(region, base, bytes);
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) override {
    if (!mapped)
      throw Error(Error::Kind::unsupported, "region " + std::to_string(region) + " of rank " + std::to_string(peer) +
                                                " is not mapped here, which the cuda wire needs");
    regions_.import(region, peer, exported, mapped);
  }
  void remove_region(uint32_t region) override { regions_.remove(region); }
  std::unique_ptr<Endpoint> endpoint() override {
    return std::make_unique<CudaEndpoint>(regions_, streams_, size_, queue_, context_);
  }
  uint64_t max_message() const override { return max_message_; }

 private:
  Regions regions_;
  uint32_t size_;
  uint64_t max_message_, queue_;
  cuda::Context context_;
  Streams streams_;
};

}  // namespace

std::unique_ptr<Fabric> make_cuda(uint32_t rank, uint32_t size, const Options& options) {
  return std::make_unique<CudaFabric>(rank, size, option(options, "max_message", default_max_message, 1, most_message),
                                      option(options, "queue", default_queue, 1, most_queue));
}

}  // namespace gin::wire
