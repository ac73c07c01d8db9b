// The primitives on a descriptor ring: each operation is one descriptor (two with a large immediate) that the progress
// engine turns into a request of the wire. A window's handle is its number.
#pragma once

#include "gin/impl/wait.cuh"
#include "producer.h"

// 1: sources that other devices or the host write while kernels run are fenced at system scope before each operation.
#ifndef GIN_IBRC_SYSTEM_SOURCES
#define GIN_IBRC_SYSTEM_SOURCES 0
#endif

namespace gin {

namespace ibrc {

GIN_DEVICE Ring ring_of(impl::Channel channel) {
  return platform::load_constant(static_cast<const Ring*>(channel.comm.backend) + channel.index);
}

GIN_DEVICE impl::Subject subject_of(impl::Channel channel, Operation operation, const Fields& fields) {
  return {operation, channel.index, int32_t(fields.peer), fields.id};
}

GIN_DEVICE bool wait_for_room(impl::Channel channel, const Ring& ring, impl::Subject subject, uint64_t end) {
  platform::tell(platform::NoteKind::watch, subject.operation, channel.index, uint64_t(&ring.progress->consumed),
                 end - ring.depth, uint64_t(channel.comm.failed));
  return impl::wait_for(channel.comm, subject, [&] { return finds_room(ring, end); }).ok();
}

// Waits until the slots may be written; false when that failed. Where there is no room for all lanes that reserved together,
// one of them waits for those in its ring, unless the ring is smaller than what lies between their first slot and their last.
GIN_DEVICE bool enter(impl::Channel channel, const Ring& ring, impl::Subject subject, const Reservation& reserved,
                      uint64_t end) {
  if (!any_of(reserved.lanes, !has_room(ring, end, reserved.consumed))) return true;
  const Group group = group_of(ring, reserved, end);
  const bool together = group.end - group.first <= ring.depth;
  const uint64_t last = together ? group.end : end;
  bool entered = has_room(ring, last, reserved.consumed);
  if (!entered && (group.leader || !together)) entered = wait_for_room(channel, ring, subject, last);
  return together ? group.share(entered) : entered;
}

// Puts an operation into the ring, waiting for room where there is none, and returns its ticket. When that wait fails
// the slots stay empty and the ring ends there: the job has failed, and no later wait of it begins.
GIN_DEVICE uint64_t push(impl::Channel channel, Operation operation, const Fields& fields,
                         const void* source = nullptr) {
  const Ring ring = ring_of(channel);
  const uint32_t count = slots(fields);
  // Only these touch memory of this rank that the caller may just have written.
  const bool reads_memory = fields.op == Op::put || fields.op == Op::get;
  const Reservation reserved = reserve(ring, count, [&] {
    if (reads_memory) release_payload(GIN_IBRC_SYSTEM_SOURCES);
  });
  const uint64_t ticket = reserved.first + count;
  if (enter(channel, ring, subject_of(channel, operation, fields), reserved, ticket)) {
    publish(ring, reserved.first, fields);
    platform::tell(platform::NoteKind::descriptor, operation, channel.index, reserved.first, uint64_t(source),
                   fields.bytes);
  }
  return ticket;
}

GIN_DEVICE void set_signal(Fields& fields, impl::Signal signal) {
  fields.has_signal = signal.present;
  fields.ordered = signal.ordered;
  fields.id = signal.id;
  fields.signal_add = signal.add;
}

}  // namespace ibrc

struct Backend {
#define GIN_CAPABILITY(name, value) static constexpr bool name##_supported = value;
#include "capabilities.h"
#undef GIN_CAPABILITY

  template <class Coop>
  GIN_DEVICE static void put(impl::Channel channel, Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
                             const Window& src, uint64_t src_offset, uint64_t bytes, impl::Signal signal,
                             uint32_t counter) {
    if (!coop.leader()) return;
    ibrc::Fields fields;
    fields.op = ibrc::Op::put;
    fields.peer = peer;
    fields.dst_window = uint32_t(dst.handle);
    fields.dst_offset = dst_offset;
    fields.src_window = uint32_t(src.handle);
    fields.src_offset = src_offset;
    fields.bytes = bytes;
    fields.counter = counter == impl::no_counter ? 0 : counter + 1;
    ibrc::set_signal(fields, signal);
    ibrc::push(channel, Operation::put, fields, src.local(src_offset));
  }

  template <class Coop>
  GIN_DEVICE static void get(impl::Channel channel, Coop coop, uint32_t peer, const Window& src, uint64_t src_offset,
                             const Window& dst, uint64_t dst_offset, uint64_t bytes) {
    if (!coop.leader()) return;
    ibrc::Fields fields;
    fields.op = ibrc::Op::get;
    fields.peer = peer;
    fields.dst_window = uint32_t(dst.handle);
    fields.dst_offset = dst_offset;
    fields.src_window = uint32_t(src.handle);
    fields.src_offset = src_offset;
    fields.bytes = bytes;
    ibrc::push(channel, Operation::get, fields);
  }

  GIN_DEVICE static void put_value(impl::Channel channel, uint32_t peer, const Window& dst, uint64_t offset,
                                   uint64_t value, uint32_t bytes, impl::Signal signal) {
    ibrc::Fields fields;
    fields.op = ibrc::Op::value;
    fields.peer = peer;
    fields.dst_window = uint32_t(dst.handle);
    fields.dst_offset = offset;
    fields.bytes = bytes;
    fields.immediate = value;
    ibrc::set_signal(fields, signal);
    ibrc::push(channel, Operation::put_value, fields);
  }

  GIN_DEVICE static void signal(impl::Channel channel, uint32_t peer, impl::Signal signal) {
    ibrc::Fields fields;
    fields.op = ibrc::Op::signal;
    fields.peer = peer;
    fields.immediate = signal.add;
    ibrc::set_signal(fields, signal);
    ibrc::push(channel, Operation::signal, fields);
  }

  GIN_DEVICE static uint64_t signal_value(impl::Channel channel, uint32_t id) {
    if (const uint64_t* words = ibrc::ring_of(channel).signals) return ibrc::load_acquire(words + id);
    const uint64_t offset = channel.comm.layout().native(channel.index, id);
    return impl::load_acquire(static_cast<uint64_t*>(channel.comm.control.local(offset)));
  }

  GIN_DEVICE static uint64_t counter_value(impl::Channel channel, uint32_t id) {
    return ibrc::load_acquire(&ibrc::ring_of(channel).counters[id]);
  }

  // Operations retire in order, so what was reserved up to now covers every peer.
  GIN_DEVICE static Ticket flush_begin(impl::Channel channel, uint32_t peer) {
    return {{ibrc::load_shared(ibrc::ring_of(channel).head), 0}, peer, true};
  }

  GIN_DEVICE static bool flush_done(impl::Channel channel, Ticket& ticket) {
    ticket.native = ibrc::load_acquire(&ibrc::ring_of(channel).progress->retired) < ticket.word[0];
    return !ticket.native;
  }

  GIN_DEVICE static Status fence(impl::Channel channel) {
    ibrc::Fields fields;
    fields.op = ibrc::Op::fence;
    ibrc::push(channel, Operation::fence, fields);
    return {};
  }

  GIN_DEVICE static Status quiet(impl::Channel channel) {
    const ibrc::Ring ring = ibrc::ring_of(channel);
    const uint64_t issued = ibrc::load_shared(ring.head);
    return impl::wait_until(channel.comm, {Operation::quiet, channel.index, -1, 0}, issued, channel.comm.timeout_ns,
                            [&] { return ibrc::load_acquire(&ring.progress->settled); });
  }

  // The old value comes back in a result slot, which the caller holds until it has read it. After a failure the slot
  // stays taken: the value may still arrive.
  GIN_DEVICE static uint64_t atomic(impl::Channel channel, uint32_t peer, const Window& dst, uint64_t offset,
                                    AtomicOp op, uint32_t bytes, uint64_t operand, uint64_t compare) {
    const ibrc::Ring ring = ibrc::ring_of(channel);
    const impl::Subject subject{Operation::atomic, channel.index, int32_t(peer), 0};
    uint32_t slot = ibrc::result_slots;
    const auto claimed = [&] { return (slot = ibrc::claim_result(ring)) != ibrc::result_slots; };
    if (!impl::wait_for(channel.comm, subject, claimed).ok()) return 0;

    ibrc::Fields fields;
    fields.op = ibrc::Op(uint32_t(ibrc::Op::fetch_add) + uint32_t(op));
    fields.peer = peer;
    fields.id = slot;
    fields.dst_window = uint32_t(dst.handle);
    fields.dst_offset = offset;
    fields.bytes = bytes;
    fields.immediate = operand;
    fields.compare = compare;
    const uint64_t ticket = ibrc::push(channel, Operation::atomic, fields);
    const ibrc::Result& result = ring.results[slot];
    const auto arrived = [&] { return ibrc::load_acquire(&result.done) == ticket; };
    if (!impl::wait_for(channel.comm, subject, arrived).ok()) return 0;
    const uint64_t old = ibrc::load_acquire(&result.value);
    ibrc::release_result(ring, slot);
    return old;
  }

  GIN_DEVICE static void* peer_pointer(impl::Channel channel, const Window& window, uint64_t offset, uint32_t peer) {
    return impl::mapped(channel, window, offset, peer);
  }
};

}  // namespace gin
