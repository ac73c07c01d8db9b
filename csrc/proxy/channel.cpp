#include "proxy/channel.h"

#include <algorithm>

namespace gin::proxy {
namespace {

using ibrc::Descriptor;
using ibrc::Fields;
using ibrc::Op;

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

wire::Verb verb_of(Op op) {
  switch (op) {
    case Op::put:
      return wire::Verb::put;
    case Op::value:
      return wire::Verb::value;
    case Op::get:
      return wire::Verb::get;
    case Op::signal:
      return wire::Verb::signal;
    case Op::fence:
      return wire::Verb::fence;
    default:
      return wire::Verb::atomic;
  }
}

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
  Fields fields = ibrc::decode(d);
  uint32_t slots = 1;
  if (ibrc::is_extended(d)) [[unlikely]] {
    const uint64_t next = tail_ + 1;
    Descriptor extension;
    if (room == 1 || !read(ring_.slots[next & mask_], ibrc::phase(next, ring_.depth), extension)) return false;
    if (ibrc::op_of(extension) != Op::extension) fields.op = Op::none;
    ibrc::decode_extension(fields, extension);
    slots = 2;
  }
  accept(fields, slots);
  return true;
}

[[gnu::always_inline]] inline void Channel::accept(const Fields& fields, uint32_t slots) {
  in_flight_[tail_ & mask_] = {fields.op, uint8_t(slots), false, uint16_t(fields.counter), uint16_t(fields.id)};
  if (check(fields)) translate(fields, pending_[last_++]);
  tail_ += slots;
}

[[gnu::always_inline]] inline bool Channel::check(const Fields& f) {
  const bool atomic = ibrc::is_atomic(f.op);
  const uint32_t ids = atomic ? ibrc::result_slots : layout_.ids;
  if (f.op == Op::none || f.op > Op::fetch_xor) {
    refuse(f, Code::range, uint64_t(Op::fetch_xor), uint64_t(f.op));
  } else if (f.peer >= layout_.size) {
    refuse(f, Code::range, layout_.size, f.peer);
  } else if ((f.has_signal || f.op == Op::signal || atomic) && f.id >= ids) {
    refuse(f, Code::range, ids, f.id);
  } else if (f.counter > counters_) {
    refuse(f, Code::range, counters_, f.counter - 1);
  } else if (f.op != Op::fence && failures_.given_up(f.peer)) {
    refuse(f, Code::remote, 0, 0);
  } else {
    return true;
  }
  return false;
}

[[gnu::always_inline]] inline void Channel::translate(const Fields& f, wire::Request& r) const {
  r.verb = verb_of(f.op);
  r.atomic = ibrc::is_atomic(f.op) ? wire::Atomic(uint32_t(f.op) - uint32_t(Op::fetch_add)) : wire::Atomic::fetch_add;
  r.has_signal = f.has_signal || f.op == Op::signal;
  r.ordered = f.ordered;
  r.context = context_;
  r.peer = f.peer;
  r.bytes = f.bytes;
  r.value = f.immediate;
  r.compare = f.compare;
  r.signal_region = 0;
  r.signal_offset = signals_ + 8 * uint64_t(f.id);
  r.signal_add = f.op == Op::signal ? f.immediate : f.signal_add;
  r.token = tail_;
  if (f.op == Op::get) {
    r.remote_region = f.src_window, r.remote_offset = f.src_offset;
    r.local_region = f.dst_window, r.local_offset = f.dst_offset;
  } else {
    r.remote_region = f.dst_window, r.remote_offset = f.dst_offset;
    r.local_region = f.src_window, r.local_offset = f.src_offset;
  }
  if (r.verb == wire::Verb::atomic) {
    r.has_signal = false;
    r.local_region = ibrc::result_region;
    r.local_offset = (uint64_t(context_) * ibrc::result_slots + f.id) * sizeof(ibrc::Result);
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
  const bool fence = operation.op == Op::fence;
  failures_.record(
      {c.code, operation_of(operation.op), fence ? -1 : int32_t(c.peer), context_, operation.id, 0, 0, c.detail});
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
  if (ibrc::is_atomic(operation.op))
    __atomic_store_n(&ring_.results[operation.id].done, sequence + operation.slots, __ATOMIC_RELEASE);
}

// Ends the operation at the tail without the wire.
[[gnu::noinline]] void Channel::refuse(const Fields& f, Code code, uint64_t expected, uint64_t seen) {
  in_flight_[tail_ & mask_].done = true;
  add(counts_.failures, 1);
  failures_.record({code, operation_of(f.op), int32_t(f.peer), context_, f.id, expected, seen, 0});
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
