#include "proxy/channel.h"

#include <algorithm>
#include <array>
#include <utility>

namespace gin::proxy {
namespace {

using ibrc::Descriptor;
using ibrc::Op;
using ibrc::View;

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

// The first fields of a request, which an operation's number alone decides.
struct Head {
  wire::Verb verb;
  wire::Atomic atomic;
  bool has_signal;
};

constexpr std::array<Head, 16> make_heads() {
  std::array<Head, 16> heads{};
  heads[uint32_t(Op::put)].verb = wire::Verb::put;
  heads[uint32_t(Op::value)].verb = wire::Verb::value;
  heads[uint32_t(Op::get)].verb = wire::Verb::get;
  heads[uint32_t(Op::signal)] = {wire::Verb::signal, {}, true};
  heads[uint32_t(Op::fence)].verb = wire::Verb::fence;
  for (uint32_t op = uint32_t(Op::fetch_add); op <= uint32_t(Op::fetch_xor); ++op)
    heads[op] = {wire::Verb::atomic, wire::Atomic(op - uint32_t(Op::fetch_add)), false};
  return heads;
}

constexpr std::array<Head, 16> heads = make_heads();

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
      signals_(layout.native(context, 0)),
      failures_(failures) {}

bool Channel::step() {
  bool moved = false;
  if (first_ == last_) moved = take();
  if (first_ != last_) moved |= post();
  if (settled_ != tail_) moved |= reap();
  if (settled_ != retired_ && endpoint_->settled()) settled_ = retired_;
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
  in_flight_[tail & mask_] = {uint16_t(view.counter()), uint16_t(view.id()), uint8_t(view.op()), uint8_t(slots), false};
  if (acceptable(view)) [[likely]] {
    translate(view, tail, pending_[last_++]);
  } else {
    refuse(view);
  }
  tail_ = tail + slots;
}

// How many values `id` can have.
inline uint32_t Channel::ids(const View& view) const {
  if (ibrc::is_atomic(view.op())) return ibrc::result_slots;
  return view.has_signal() || view.op() == Op::signal ? layout_.ids : ibrc::max_ids;
}

[[gnu::always_inline]] inline bool Channel::acceptable(const View& view) const {
  return uint32_t(view.op()) - 1 < uint32_t(Op::fetch_xor) && view.peer() < layout_.size && view.id() < ids(view) &&
         view.counter() <= counters_ && (!failures_.given_up(view.peer()) || view.op() == Op::fence);
}

[[gnu::always_inline]] inline void Channel::translate(const View& view, uint64_t token, wire::Request& r) const {
  const Op op = view.op();
  const Head& head = heads[uint32_t(op)];
  r.verb = head.verb;
  r.atomic = head.atomic;
  r.has_signal = head.has_signal | view.has_signal();
  r.ordered = view.ordered();
  r.context = context_;
  r.peer = view.peer();
  r.remote_region = view.dst_window(), r.remote_offset = view.dst_offset();
  r.local_region = view.src_window(), r.local_offset = view.src_offset();
  r.bytes = view.bytes();
  r.value = view.immediate();  // no wire looks at it for a put or get
  r.compare = view.compare();
  r.signal_region = 0;
  r.signal_offset = signals_ + 8 * uint64_t(view.id());
  r.signal_add = view.signal_add();
  r.token = token;
  if (op == Op::get) {
    std::swap(r.remote_region, r.local_region);
    std::swap(r.remote_offset, r.local_offset);
  } else if (ibrc::is_atomic(op)) [[unlikely]] {
    r.local_region = ibrc::result_region;
    r.local_offset = (uint64_t(context_) * ibrc::result_slots + view.id()) * sizeof(ibrc::Result);
  }
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
  return retire() || got != 0;
}

inline void Channel::finish(const wire::Completion& c) {
  if (c.token == wire::no_request) [[unlikely]] {
    lost(c);
    return;
  }
  InFlight& operation = in_flight_[c.token & mask_];
  operation.done = true;
  if (c.code == Code::ok) [[likely]] {
    succeed(c.token, operation);
    return;
  }
  add(counts_.failures, 1);
  const bool fence = operation.op() == Op::fence;
  failures_.record(
      {c.code, operation_of(operation.op()), fence ? -1 : int32_t(c.peer), context_, operation.id, 0, 0, c.detail});
  if (fence || c.code == Code::range || c.code == Code::unsupported) return;  // the request's fault, not the peer's
  failures_.give_up(c.peer);
  drop_pending(c.peer);
}

// A peer was found dead by what came after its last request.
[[gnu::noinline]] void Channel::lost(const wire::Completion& c) {
  add(counts_.failures, 1);
  failures_.record({c.code, Operation::quiet, int32_t(c.peer), context_, 0, 0, 0, c.detail});
  failures_.give_up(c.peer);
  drop_pending(c.peer);
}

inline void Channel::succeed(uint64_t sequence, InFlight& operation) {
  if (operation.counter) {
    uint64_t* counter = ring_.counters + operation.counter - 1;
    __atomic_store_n(counter, *counter + 1, __ATOMIC_RELEASE);
  }
  if (ibrc::is_atomic(operation.op()))
    __atomic_store_n(&ring_.results[operation.id].done, sequence + operation.slots, __ATOMIC_RELEASE);
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
  in_flight_[tail_ & mask_].done = true;
  add(counts_.failures, 1);
  failures_.record(failure);
}

// Requests to a peer that has just been given up need not bother the wire, which may never take them.
void Channel::drop_pending(uint32_t peer) {
  auto drop = [&](const wire::Request& r) {
    if (r.peer != peer || r.verb == wire::Verb::fence) return false;
    in_flight_[r.token & mask_].done = true;
    add(counts_.failures, 1);
    return true;
  };
  last_ = size_t(std::remove_if(&pending_[0] + first_, &pending_[0] + last_, drop) - &pending_[0]);
}

bool Channel::retire() {
  const uint64_t before = retired_;
  while (retired_ != tail_) {
    InFlight& operation = in_flight_[retired_ & mask_];
    if (!operation.done) break;
    retired_ += operation.slots;
  }
  return retired_ != before;
}

void Channel::publish() {
  ibrc::Progress& to = *ring_.progress;
  if (published_.retired != retired_) __atomic_store_n(&to.retired, published_.retired = retired_, __ATOMIC_RELEASE);
  if (published_.settled != settled_) __atomic_store_n(&to.settled, published_.settled = settled_, __ATOMIC_RELEASE);
  if (published_.consumed != tail_) __atomic_store_n(&to.consumed, published_.consumed = tail_, __ATOMIC_RELEASE);
}

}  // namespace gin::proxy
