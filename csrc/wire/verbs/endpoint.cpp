#include "wire/verbs/endpoint.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "error.h"
#include "wire/verbs/chain.h"
#include "wire/verbs/syndrome.h"

namespace gin::wire::verbs {
namespace {

using Ends = Entry::Ends;

constexpr uint64_t page = 4096;
constexpr uint32_t most_completions = 1u << 15;

uint32_t depth_of(const Settings& settings, const Device& device) {
  const uint32_t most = std::max(8u, device.most_requests);
  return std::bit_floor(std::min(std::bit_ceil(settings.depth), most));
}

// Linux's device in software. It differs in two ways (Linux 6.1), both once packets were lost: it sends nothing more behind a
// fence; and when it is sent a write again, it acknowledges with the number of what it did last. Where that is an atomic,
// whose answer is then taken for come, the atomic ends with the answer of an earlier one.
bool is_soft_roce(const Device& device) {
  constexpr uint32_t vendor = 0xffffff;
  ibv_device_attr attr{};
  return Library::get().query_device(device.context.get(), &attr) == 0 && attr.vendor_id == vendor;
}

uint32_t next_number(Core& core) {
  std::lock_guard<std::mutex> lock(core.mutex);
  return uint32_t(core.endpoints.size());
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<Core> core)
    : core_(std::move(core)),
      number_(next_number(*core_)),
      device_(core_->device_of(number_)),
      depth_(depth_of(core_->settings, *core_->devices[device_])),
      inline_bytes_(core_->settings.inline_bytes),
      soft_(is_soft_roce(*core_->devices[device_])),
      relaxed_(core_->settings.relaxed &&
               !soft_),  // Soft-RoCE's writes do not overtake each other, whatever is asked for
      done_(core_->settings.queue),
      most_taken_(core_->settings.queue),
      words_({&core_->devices[device_], 1}, 2 * page),
      slots_(most_slots),
      entries_(size_t(core_->size) * depth_),
      requests_(chain_length),
      pieces_(chain_length),
      values_(chain_length),
      domain_(*core_->devices[device_]),
      queues_(core_->size) {
  const Library& lib = Library::get();
  const Device& device = *core_->devices[device_];
  most_in_flight_ = std::min<size_t>({size_t(core_->size) * depth_, device.most_completions, most_completions});
  completions_ = CqHandle(lib.create_cq(device.context.get(), int(most_in_flight_), nullptr, nullptr, 0));
  if (!completions_) {
    const int error = errno;
    throw Error(Error::Kind::memory, device.name() + " makes no completion queue of " +
                                         std::to_string(most_in_flight_) + " entries: " + std::strerror(error) +
                                         "; set GIN_IB_DEPTH to less" + limit_advice(error));
  }
  for (uint32_t peer = 0; peer < core_->size; ++peer) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = completions_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {depth_, 1, 1, 1, inline_bytes_};
    Queue& q = queues_[peer];
    q.peer = peer;
    q.entries = entries_.data() + size_t(peer) * depth_;
    q.pair = QpHandle(lib.create_qp(domain_.get(), &init));
    if (q.pair) continue;
    const int error = errno;
    throw Error(Error::Kind::memory, device.name() + " makes no queue pair for rank " + std::to_string(peer) + " (" +
                                         std::to_string(depth_) + " requests): " + std::strerror(error) +
                                         "; set GIN_IB_DEPTH or GIN_CONTEXTS to less" + limit_advice(error));
  }
  for (uint32_t i = most_slots; i-- > 0;) free_slots_.push_back(uint16_t(i));
  swapping_.reserve(most_slots);
  held_.reserve(most_slots);
  for (std::vector<Queue*>* list : {&touched_, &ready_, &unsettled_}) list->reserve(core_->size);
  std::lock_guard<std::mutex> lock(core_->mutex);
  core_->endpoints.push_back(this);
}

VerbsEndpoint::~VerbsEndpoint() {
  std::lock_guard<std::mutex> lock(core_->mutex);
  core_->endpoints[number_] = nullptr;
}

// -- from requests to work requests -----------------------------------------------------------------------------------

size_t VerbsEndpoint::post(const Request* requests, size_t count) {
  size_t taken = 0;
  while (taken < count && take(requests[taken])) ++taken;
  ring();
  return taken;
}

bool VerbsEndpoint::end(const Request& r, Code code, uint64_t detail) {
  done_.push({r.token, code, r.peer, detail});
  ++taken_;
  return true;
}

bool VerbsEndpoint::take(const Request& r) {
  if (taken_ == most_taken_) return false;
  if (r.verb == Verb::fence) {  // one queue pair keeps order; relaxed writes are held back when the next one is posted
    ++fences_;
    return end(r, Code::ok, 0);
  }
  if (r.peer >= core_->size) return end(r, Code::range, 0);
  Queue& q = queues_[r.peer];
  if (q.dead) return end(r, Code::remote, q.syndrome);
  if (!q.connected) return end(r, Code::internal, syndrome_of_errno(ENOTCONN));
  if (q.held || (q.emulated && q.emulated_at != fences_)) return false;
  if (q.fences_met != fences_) q.fences_met = fences_, q.fence_goal = q.fetched;
  if (r.verb == Verb::atomic) return take_atomic(r, q);

  const bool value = r.verb == Verb::value, moves = value || (r.bytes != 0 && r.verb != Verb::signal);
  const RemoteRegion *remote = nullptr, *signal = nullptr;
  const LocalRegion* local = nullptr;
  if (r.has_signal) {
    signal = core_->memory.find(r.signal_region, r.peer, device_);
    if (!signal || r.signal_offset % 8 != 0 || !inside(r.signal_offset, 8, signal->bytes))
      return end(r, Code::range, 0);
  }
  if (r.verb != Verb::signal) {
    remote = core_->memory.find(r.remote_region, r.peer, device_);
    if (!remote || !inside(r.remote_offset, r.bytes, remote->bytes)) return end(r, Code::range, 0);
    if (value) {
      if (r.bytes < 1 || r.bytes > 8) return end(r, Code::range, 0);
    } else {
      local = core_->memory.find(r.local_region);
      if (!local || !inside(r.local_offset, r.bytes, local->bytes) || r.bytes > core_->settings.max_message)
        return end(r, Code::range, 0);
    }
  }
  if (!moves && !signal) return end(r, Code::ok, 0);
  if (!has_room(q, 3)) return false;
  ++taken_;
  const Entry last{r.token, Ends::request, false, false, 0};
  const Entry first = signal ? Entry{} : last;
  if (moves && r.verb == Verb::get)
    read(q, r, *local, *remote, first);
  else if (moves)
    write(q, r, local, *remote, first);
  if (signal) add(q, signal->address + r.signal_offset, signal->key, r.signal_add, last);
  return true;
}

void VerbsEndpoint::write(Queue& q, const Request& r, const LocalRegion* local, const RemoteRegion& remote,
                          Entry entry) {
  const bool fenced = keep_fence(q);
  entry.writes = true;
  const uint32_t at = chained_;
  ibv_send_wr& wr = chain(q, IBV_WR_RDMA_WRITE, remote.address + r.remote_offset, remote.key, entry);
  if (fenced) wr.send_flags |= IBV_SEND_FENCE;
  if (local) {
    pieces_[at] = {uint64_t(uintptr_t(local->base + r.local_offset)), uint32_t(r.bytes), local->keys[device_]};
    if (r.bytes <= inline_bytes_ && !local->of_gpu) wr.send_flags |= IBV_SEND_INLINE;  // the CPU copies these
  } else {
    values_[at] = r.value;
    pieces_[at] = {uint64_t(uintptr_t(&values_[at])), uint32_t(r.bytes), 0};
    wr.send_flags |= IBV_SEND_INLINE;
  }
}

void VerbsEndpoint::read(Queue& q, const Request& r, const LocalRegion& local, const RemoteRegion& remote,
                         Entry entry) {
  entry.trips = true;
  pieces_[chained_] = {uint64_t(uintptr_t(local.base + r.local_offset)), uint32_t(r.bytes), local.keys[device_]};
  chain(q, IBV_WR_RDMA_READ, remote.address + r.remote_offset, remote.key, entry);
  q.fetched = q.posted;
}

void VerbsEndpoint::add(Queue& q, uint64_t target, uint32_t key, uint64_t value, Entry entry) {
  const bool fenced = starts_fenced(q);
  entry.trips = true;
  pieces_[chained_] = {words_.address(), 8, words_.local_key()};
  ibv_send_wr& wr = chain(q, IBV_WR_ATOMIC_FETCH_AND_ADD, target, key, entry);
  wr.wr.atomic.compare_add = value;
  if (fenced) wr.send_flags |= IBV_SEND_FENCE;
}

// A round trip that says nothing but that everything before it has settled: the read pushes the writes before it along
// their way to memory. A GPU's is another than the host's.
void VerbsEndpoint::read_back(Queue& q) {
  pieces_[chained_] = {words_.address(), 8, words_.local_key()};
  const RemoteRegion* control = core_->memory.find(0, q.peer, device_);
  const bool gpu = control && control->of_gpu;
  const Board& peers = board(q.peer);
  chain(q, IBV_WR_RDMA_READ, gpu ? control->address : peers.page(core_->size), gpu ? control->key : peers.key,
        {0, Ends::nothing, false, true, 0});
}

// Whether the next write has to wait for the answers before it. Relaxed writes may overtake each other in the target's memory,
// so after a fence the first one waits for a round trip that follows the earlier ones.
bool VerbsEndpoint::keep_fence(Queue& q) {
  const bool fetches = starts_fenced(q);
  if (!relaxed_ || q.fences_seen == fences_) return fetches;
  q.fences_seen = fences_;
  if (q.wrote > q.tripped) read_back(q);
  return q.tripped > q.retired;
}

// Hands every chain to the device, its last work request signalled.
void VerbsEndpoint::ring() {
  for (Queue* q : touched_) {
    q->last->send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* refused_from = nullptr;
    const int error = ibv_post_send(q->pair.get(), q->first, &refused_from);
    q->first = q->last = nullptr;
    if (error) [[unlikely]]
      refused(*q, error);
  }
  touched_.clear();
  chained_ = 0;
}

// The device did not take a chain: what is in flight on the queue pair can no longer be told apart, so all of it fails.
void VerbsEndpoint::refused(Queue& q, int error) { give_up(q, syndrome_of_errno(error)); }

// With the queue pair go its completions, which would take room that is given to others.
void VerbsEndpoint::give_up(Queue& q, uint64_t syndrome) {
  q.pair.reset();
  lose(q, q.completed, syndrome);
}

// The device sends nothing more by the queue pair, and flushes what is in flight.
int VerbsEndpoint::shut(Queue& q) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return Library::get().modify_qp(q.pair.get(), &attr, IBV_QP_STATE);
}

// Completions of flushed requests end them, without the retries that a peer which is gone would take.
void VerbsEndpoint::abandon(uint32_t peer) {
  Queue& q = queues_[peer];
  if (q.dead || !q.connected) return;
  if (shut(q) != 0)
    give_up(q, syndrome_of_errno(ECANCELED));
  else if (q.posted == q.completed)
    lose(q, q.completed, syndrome_of_errno(ECANCELED));
}

// -- from completions to completions ----------------------------------------------------------------------------------

size_t VerbsEndpoint::poll(Completion* completions, size_t count) {
  size_t got = 0;
  if (in_flight_ != 0) collect();
  if (!ready_.empty()) got = hand_out(completions, count);
  if (!held_.empty()) [[unlikely]]
    release_held();
  const size_t ended = done_.pop(completions + got, count - got);
  taken_ -= ended;
  return got + ended;
}

void VerbsEndpoint::collect() {
  ibv_wc found[32];
  const int count = ibv_poll_cq(completions_.get(), 32, found);
  if (count < 0) [[unlikely]] {
    for (Queue& q : queues_)
      if (q.posted != q.completed) give_up(q, syndrome_of_errno(EIO));
    return;
  }
  for (int i = 0; i < count; ++i) {
    Queue& q = queues_[found[i].wr_id >> number_bits];
    const uint64_t ahead = (found[i].wr_id - q.completed) & number_mask;  // of the next to complete
    if (ahead >= q.posted - q.completed) continue;                        // given up before
    const uint64_t number = q.completed + ahead;
    if (found[i].status != IBV_WC_SUCCESS && !q.dead) [[unlikely]] {
      q.dead = true;
      q.failed_from = number;
      q.syndrome = syndrome_of(found[i]);
    }
    in_flight_ -= ahead + 1;
    q.completed = number + 1;
    make_ready(q);
  }
}

inline void VerbsEndpoint::make_ready(Queue& q) {
  if (q.ready) return;
  q.ready = true;
  ready_.push_back(&q);
}

// Gives up everything on the queue from a work request on.
void VerbsEndpoint::lose(Queue& q, uint64_t from, uint64_t syndrome) {
  if (!q.dead) {
    q.dead = true;
    q.failed_from = from;
    q.syndrome = syndrome;
  }
  in_flight_ -= q.posted - q.completed;
  q.completed = q.posted;
  make_ready(q);
}

size_t VerbsEndpoint::hand_out(Completion* completions, size_t count) {
  size_t got = 0, kept = 0;
  for (size_t i = 0; i < ready_.size(); ++i) {
    Queue* q = ready_[i];
    if (retire(*q, completions, count, got))
      q->ready = false;
    else
      ready_[kept++] = q;
  }
  ready_.resize(kept);
  return got;
}

// Ends work requests that have completed; false when there is no room for a completion.
bool VerbsEndpoint::retire(Queue& q, Completion* completions, size_t count, size_t& got) {
  while (q.retired != q.completed) {
    const Entry entry = q.entries[q.retired & (depth_ - 1)];
    const bool failed = q.failed(q.retired);
    if (entry.ends == Ends::request) {
      if (got == count) return note_landed(q), false;
      completions[got++] = {entry.token, failed ? Code::remote : Code::ok, q.peer, failed ? q.syndrome : 0};
      --taken_;
      q.told |= failed;
    }
    ++q.retired;
    if (!failed && entry.writes) q.landed = q.retired;
    if (!failed && entry.trips) q.settled = q.retired;
    if (entry.ends == Ends::atomic) finish_slot(entry.slot, failed);
  }
  note_landed(q);
  if (q.dead && !q.told && q.retired == q.posted && !q.held) {  // otherwise a request that is still to end tells it
    if (got == count) return false;
    completions[got++] = {no_request, Code::remote, q.peer, q.syndrome};
    q.told = true;
  }
  return true;
}

// Of a queue that is dead, too: `settled` is not true before that is told.
inline void VerbsEndpoint::note_landed(Queue& q) {
  if (q.unsettled || q.landed <= q.settled || (q.dead && q.told)) return;
  q.unsettled = true;
  q.goal = 0;
  unsettled_.push_back(&q);
}

bool VerbsEndpoint::settled() {
  if (unsettled_.empty() && !settling_) return true;
  if (!settling_) {
    settling_ = true;
    for (Queue* q : unsettled_) q->goal = q->landed;
  }
  collect();
  hand_out(nullptr, 0);
  size_t kept = 0;
  bool all = true;
  for (size_t i = 0; i < unsettled_.size(); ++i) {
    Queue* q = unsettled_[i];
    if (q->dead ? q->told : q->settled >= q->landed) {
      q->unsettled = false;
      continue;
    }
    unsettled_[kept++] = q;
    if (!q->dead && q->settled >= q->goal) continue;
    all = false;
    if (!q->dead && q->tripped <= q->goal && has_room(*q, 1)) read_back(*q);
  }
  unsettled_.resize(kept);
  ring();
  settling_ = !all;
  return all;
}

// -- for the fabric ---------------------------------------------------------------------------------------------------

bool VerbsEndpoint::write_board(uint32_t peer, uint64_t target, uint64_t bytes) {
  Queue& q = queues_[peer];
  if (q.dead || !has_room(q, 1)) return false;
  pieces_[chained_] = {words_.address() + page, uint32_t(bytes), words_.local_key()};
  chain(q, IBV_WR_RDMA_WRITE, target, board(peer).key, {0, Ends::nothing, true, false, 0});
  ring();
  return true;
}

bool VerbsEndpoint::probe(uint32_t peer, uint64_t bytes) {
  return queues_[peer].connected &&
         write_board(peer, board(peer).page(core_->size), std::min(bytes, Board::page_bytes));
}

bool VerbsEndpoint::say_goodbye(uint32_t peer) {
  std::memset(words_.data() + page, 1, 8);
  return queues_[peer].connected && write_board(peer, board(peer).goodbye(core_->rank), 8);
}

}  // namespace gin::wire::verbs
