#include "proxy/channel.h"

#include <algorithm>
#include <array>
#include <utility>

namespace gin::proxy {
namespace {

using ibrc::Descriptor;
using ibrc::Op;
using ibrc::View;

// Which ids an operation may name, as an index of Channel::most_ids_.
enum class Ids : uint8_t { none, signal, result, any };

// Words that only the stepping thread writes.
void add(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(word.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

// The slot's descriptor if all of it is of this phase.
[[gnu::always_inline]] inline bool read(const Descriptor& slot, uint64_t phase, Descriptor& d) {
  d.word[0] = __atomic_load_n(&slot.word[0], __ATOMIC_ACQUIRE);
  d.word[1] = __atomic_load_n(&slot.word[1], __ATOMIC_ACQUIRE);
  d.word[2] = __atomic_load_n(&slot.word[2], __ATOMIC_ACQUIRE);
  d.word[3] = __atomic_load_n(&slot.word[3], __ATOMIC_ACQUIRE);
  return ibrc::complete(d, phase);
}

Operation operation_of(Op op) {
  switch (op) {
    case Op::put:
      return Operation::put;
    case Op::value:
      return Operation::put_value;
    case Op::get:
      return Operation::get;
    case Op::signal:
      return Operation::signal;
    case Op::fence:
      return Operation::fence;
    default:
      return ibrc::is_atomic(op) ? Operation::atomic : Operation::none;
  }
}

// What an operation and its flags decide: the first fields of a request, in their order, and what its id may be.
struct alignas(8) Kind {
  wire::Verb verb;
  wire::Atomic atomic;
  bool has_signal, ordered;
  Ids ids;
};

constexpr Kind kind_of(Op op) {
  switch (op) {
    case Op::put:
      return {wire::Verb::put, {}, false, false, Ids::any};
    case Op::value:
      return {wire::Verb::value, {}, false, false, Ids::any};
    case Op::get:
      return {wire::Verb::get, {}, false, false, Ids::any};
    case Op::signal:
      return {wire::Verb::signal, {}, true, false, Ids::signal};
    case Op::fence:
      return {wire::Verb::fence, {}, false, false, Ids::any};
    default:
      if (!ibrc::is_atomic(op)) return {wire::Verb::fence, {}, false, false, Ids::none};
      return {wire::Verb::atomic, wire::Atomic(uint32_t(op) - uint32_t(Op::fetch_add)), false, false, Ids::result};
  }
}

// By View::kind().
constexpr std::array<Kind, 64> make_kinds() {
  std::array<Kind, 64> kinds{};
  for (uint32_t i = 0; i < kinds.size(); ++i) {
    Kind& kind = kinds[i] = kind_of(Op(i >> 2));
    kind.has_signal |= i >> 1 & 1;
    kind.ordered = i & 1;
    if (kind.has_signal && kind.ids == Ids::any) kind.ids = Ids::signal;
  }
  return kinds;
}

constexpr std::array<Kind, 64> kinds = make_kinds();

static_assert(uint32_t(Op::fetch_xor) - uint32_t(Op::fetch_add) == uint32_t(wire::Atomic::fetch_xor) &&
                  uint32_t(Op::compare_swap) - uint32_t(Op::fetch_add) == uint32_t(wire::Atomic::compare_swap),
              "the atomics of descriptors and wires are numbered alike");

}  // namespace

Channel::Channel(uint32_t context, const ibrc::Ring& ring, uint32_t counters, ControlLayout layout,
                 std::unique_ptr<wire::Endpoint> endpoint, Failures& failures)
    : ring_(ring),
      mask_(ring.depth - 1),
      endpoint_(std::move(endpoint)),
      in_flight_(ring.depth),
      context_(context),
      counters_(counters),
      layout_(layout),
      most_ids_{0, layout.ids, ibrc::result_slots, ibrc::max_ids},
      signals_(layout.native(context, 0)),
      failures_(failures) {
  for (wire::Request& r : pending_) r.context = context;
}

bool Channel::step() {
  bool moved = false;
  if (failures_.given_up() != given_up_) [[unlikely]]
    abandon();
  if (first_ == last_) moved = take();
  if (first_ != last_) moved |= post();
  if (settled_ != tail_) moved |= reap();
  while (settled_ != retired_) {  // once more when the answer was about less: nothing else may ask for another step
    if (asked_ == settled_) asked_ = retired_;
    if (!endpoint_->settled()) break;
    settled_ = asked_;
  }
  publish();
  return moved;
}

bool Channel::idle() const {
  Descriptor d;
  return tail_ == retired_ && settled_ == retired_ &&
         !read(ring_.slots[tail_ & mask_], ibrc::phase(tail_, ring_.depth), d);
}

Stats Channel::stats() const {
  Stats s;
  s.descriptors = counts_.descriptors.load(std::memory_order_relaxed);
  s.batches = counts_.batches.load(std::memory_order_relaxed);
  s.failures = counts_.failures.load(std::memory_order_relaxed);
  s.max_depth = counts_.max_depth.load(std::memory_order_relaxed);
  return s;
}

// -- from the ring ----------------------------------------------------------------------------------------------------

bool Channel::take() {
  first_ = last_ = 0;
  size_t taken = 0;
  while (taken < batch && take_one()) ++taken;
  if (taken == 0) return false;
  add(counts_.descriptors, taken);
  add(counts_.batches, 1);
  if (tail_ - retired_ > counts_.max_depth.load(std::memory_order_relaxed))
    counts_.max_depth.store(tail_ - retired_, std::memory_order_relaxed);
  return true;
}

[[gnu::always_inline]] inline bool Channel::take_one() {
  const uint64_t room = ring_.depth - (tail_ - retired_);
  Descriptor d;
  if (room == 0 || !read(ring_.slots[tail_ & mask_], ibrc::phase(tail_, ring_.depth), d)) return false;
  if (ibrc::is_extended(d)) [[unlikely]]
    return take_extended(d, room);
  accept(View(d), 1);
  return true;
}

[[gnu::noinline]] bool Channel::take_extended(Descriptor d, uint64_t room) {
  const uint64_t next = tail_ + 1;
  Descriptor extension;
  if (room == 1 || !read(ring_.slots[next & mask_], ibrc::phase(next, ring_.depth), extension)) return false;
  if (ibrc::op_of(extension) != Op::extension) d.word[0] &= ~(uint64_t(0xf) << 59);  // Op::none, which is refused
  accept(View(d, ibrc::extension_value(extension)), 2);
  return true;
}

[[gnu::always_inline]] inline void Channel::accept(const View& view, uint32_t slots) {
  const uint64_t tail = tail_;
  in_flight_[tail & mask_] = {uint16_t(view.counter()), uint16_t(view.id()), uint8_t(view.kind()), uint8_t(slots),
                              false};
  if (acceptable(view)) [[likely]] {
    translate(view, tail, pending_[last_++]);
  } else {
    refuse(view);
  }
  tail_ = tail + slots;
}

// How many values `id` can have; 0 for an operation that does not exist.
inline uint32_t Channel::ids(const View& view) const { return most_ids_[uint8_t(kinds[view.kind()].ids)]; }

[[gnu::always_inline]] inline bool Channel::acceptable(const View& view) const {
  return view.peer() < layout_.size && view.id() < ids(view) && view.counter() <= counters_ &&
         (!failures_.given_up(view.peer()) || view.op() == Op::fence);
}

// Writes what this verb's requests differ in; context and signal region are in pending_ from the beginning.
[[gnu::always_inline]] inline void Channel::translate(const View& view, uint64_t token, wire::Request& r) {
  const Kind& kind = kinds[view.kind()];
  r.verb = kind.verb, r.atomic = kind.atomic, r.has_signal = kind.has_signal, r.ordered = kind.ordered;
  r.peer = view.peer();
  r.remote_region = view.dst_window(), r.remote_offset = view.dst_offset();
  r.local_region = view.src_window(), r.local_offset = view.src_offset();
  r.signal_offset = signals_ + 8 * uint64_t(view.id());
  r.signal_add = view.more();
  r.token = token;
  if (kind.verb == wire::Verb::put) [[likely]] {
    r.bytes = view.moved_bytes();
    r.value = 0;
  } else if (kind.verb == wire::Verb::get) {
    r.bytes = view.moved_bytes();
    r.value = 0;
    std::swap(r.remote_region, r.local_region);
    std::swap(r.remote_offset, r.local_offset);
  } else {
    r.bytes = view.immediate_bytes();
    r.value = view.immediate();
    if (kind.verb == wire::Verb::signal) r.signal_add = r.value;
    if (kind.verb == wire::Verb::atomic) [[unlikely]]
      translate_atomic(view.id(), view.more(), r);
  }
}

[[gnu::noinline]] void Channel::translate_atomic(uint32_t id, uint64_t compare, wire::Request& r) {
  r.compare = compare;
  r.local_region = ibrc::result_region;
  r.local_offset = (uint64_t(context_) * ibrc::result_slots + id) * sizeof(ibrc::Result);
  in_flight_[r.token & mask_].follows |= InFlight::result;
}

// -- to the wire ------------------------------------------------------------------------------------------------------

bool Channel::post() {
  const size_t posted = endpoint_->post(&pending_[first_], last_ - first_);
  first_ += posted;
  return posted != 0;
}

bool Channel::reap() {
  wire::Completion completions[batch];
  const size_t got = endpoint_->poll(completions, batch);
  for (size_t i = 0; i < got; ++i) finish(completions[i]);
  retire();
  return got != 0;
}

[[gnu::always_inline]] inline void Channel::finish(const wire::Completion& c) {
  if (c.code != Code::ok) [[unlikely]] {
    fail(c);
    return;
  }
  InFlight& operation = in_flight_[c.token & mask_];
  if (operation.follows) succeed(c.token, operation);
  end(c.token, operation);
}

// Most end in the order in which they were taken, and are retired on the spot.
[[gnu::always_inline]] inline void Channel::end(uint64_t sequence, InFlight& operation) {
  if (sequence == retired_) [[likely]] {
    retired_ = sequence + operation.slots;
  } else {
    operation.done = true;
  }
}

[[gnu::noinline]] void Channel::fail(const wire::Completion& c) {
  if (c.token == wire::no_request) {
    lost(c);
    return;
  }
  InFlight& operation = in_flight_[c.token & mask_];
  add(counts_.failures, 1);
  const bool fence = operation.op() == Op::fence;
  failures_.record(
      {c.code, operation_of(operation.op()), fence ? -1 : int32_t(c.peer), context_, operation.id, 0, 0, c.detail});
  if (!fence && c.code != Code::range && c.code != Code::unsupported) {  // the peer's fault, not the request's
    failures_.give_up(c.peer);
    let_go(c.token, operation);
    drop_pending(c.peer);
  }
  end(c.token, operation);
}

// A peer was found dead by what came after its last request.
[[gnu::noinline]] void Channel::lost(const wire::Completion& c) {
  add(counts_.failures, 1);
  failures_.record({c.code, Operation::quiet, int32_t(c.peer), context_, 0, 0, 0, c.detail});
  failures_.give_up(c.peer);
  drop_pending(c.peer);
}

[[gnu::noinline]] void Channel::succeed(uint64_t sequence, const InFlight& operation) {
  if (const uint32_t number = operation.follows & ~InFlight::result) {
    uint64_t* counter = ring_.counters + number - 1;
    __atomic_store_n(counter, *counter + 1, __ATOMIC_RELEASE);
  }
  if (operation.follows & InFlight::result)
    __atomic_store_n(&ring_.results[operation.id].done, sequence + operation.slots, __ATOMIC_RELEASE);
}

// Nothing more comes of an operation, as its peer is lost. Where that is no failure of the job, nobody waits for it in vain.
[[gnu::noinline]] void Channel::let_go(uint64_t sequence, InFlight& operation) {
  if (!failures_.goes_on()) return;
  if (ibrc::is_atomic(operation.op())) {
    __atomic_store_n(&ring_.results[operation.id].value, uint64_t(0), __ATOMIC_RELAXED);
    operation.follows |= InFlight::result;
  }
  succeed(sequence, operation);
}

// Ends the operation at the tail, which is not acceptable, without the wire.
[[gnu::noinline]] void Channel::refuse(View view) {
  Failure failure{Code::range, operation_of(view.op()), int32_t(view.peer()), context_, view.id(), 0, 0, 0};
  if (view.op() == Op::none || view.op() > Op::fetch_xor) {
    failure.expected = uint64_t(Op::fetch_xor), failure.seen = uint64_t(view.op());
  } else if (view.peer() >= layout_.size) {
    failure.expected = layout_.size, failure.seen = view.peer();
  } else if (view.id() >= ids(view)) {
    failure.expected = ids(view), failure.seen = view.id();
  } else if (view.counter() > counters_) {
    failure.expected = counters_, failure.seen = view.counter() - 1;
  } else {
    failure.code = Code::remote;
  }
  InFlight& operation = in_flight_[tail_ & mask_];
  add(counts_.failures, 1);
  failures_.record(failure);
  if (failure.code == Code::remote) let_go(tail_, operation);
  operation.done = true;
}

// Peers have been given up since the last step, by whomever: what the wire still has for them is to end.
[[gnu::noinline]] void Channel::abandon() {
  given_up_ = failures_.given_up();
  for (uint32_t peer = 0; peer < layout_.size; ++peer) {
    if (!failures_.given_up(peer)) continue;
    drop_pending(peer);
    endpoint_->abandon(peer);
  }
}

// Requests to a peer that has just been given up need not bother the wire, which may never take them.
void Channel::drop_pending(uint32_t peer) {
  auto drop = [&](const wire::Request& r) {
    if (r.peer != peer || r.verb == wire::Verb::fence) return false;
    InFlight& operation = in_flight_[r.token & mask_];
    let_go(r.token, operation);
    operation.done = true;
    add(counts_.failures, 1);
    return true;
  };
  last_ = size_t(std::remove_if(&pending_[0] + first_, &pending_[0] + last_, drop) - &pending_[0]);
}

void Channel::retire() {
  while (retired_ != tail_) {
    const InFlight& operation = in_flight_[retired_ & mask_];
    if (!operation.done) break;
    retired_ += operation.slots;
  }
}

void Channel::publish() {
  ibrc::Progress& to = *ring_.progress;
  if (published_.retired != retired_) __atomic_store_n(&to.retired, published_.retired = retired_, __ATOMIC_RELEASE);
  if (published_.settled != settled_) __atomic_store_n(&to.settled, published_.settled = settled_, __ATOMIC_RELEASE);
  if (published_.consumed != tail_) __atomic_store_n(&to.consumed, published_.consumed = tail_, __ATOMIC_RELEASE);
}

}  // namespace gin::proxy
