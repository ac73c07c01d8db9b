// signal, wait, read, epochs, counters.
#pragma once

#include "../context.cuh"
#include "check.cuh"
#include "route.cuh"
#include "wait.cuh"

namespace gin {

namespace impl {

GIN_DEVICE uint64_t signal_slot(Channel channel, uint32_t id) {
  return uint64_t(channel.index) * channel.comm.signals + id;
}

GIN_DEVICE uint64_t counter_slot(Channel channel, uint32_t id) {
  return uint64_t(channel.index) * channel.comm.counters + id;
}

GIN_DEVICE uint64_t signal_now(Channel channel, uint32_t id) {
  return raw_signal(channel, id) - load_relaxed(&channel.comm.base[signal_slot(channel, id)]);
}

GIN_DEVICE uint64_t raw_counter(Channel channel, uint32_t id) {
  uint64_t value = load_acquire(&channel.comm.counter[counter_slot(channel, id)]);
  if (!never_native(channel.comm)) value += Backend::counter_value(channel, id);
  return value;
}

GIN_DEVICE uint64_t counter_now(Channel channel, uint32_t id) {
  return raw_counter(channel, id) - load_relaxed(&channel.comm.counter_base[counter_slot(channel, id)]);
}

GIN_DEVICE void advance_epoch(Channel channel, uint32_t id, uint64_t reached) {
  raise_to(&channel.comm.epoch[signal_slot(channel, id)], reached);
}

GIN_DEVICE Subject subject(Channel channel, Operation operation, uint32_t id) {
  return {operation, channel.index, -1, id};
}

// One thread's wait for a signal; `peer` is the sender whose loss ends it, -1 for anybody.
GIN_DEVICE Status await_signal(Channel channel, uint32_t id, uint64_t least, int32_t peer, uint64_t timeout_ns) {
  const Comm& comm = channel.comm;
  if (!check_id(channel, Operation::wait, id, comm.signals)) return failure(comm);
  // Nobody resets a signal that is waited for, so what was taken off need not be looked up again.
  const uint64_t base = load_relaxed(&comm.base[signal_slot(channel, id)]);
  const Status status = wait_until(
      comm, {Operation::wait, channel.index, peer, id}, least, timeout_ns,
      [&] { return raw_signal(channel, id) - base; }, [&] { return peer >= 0 && lost(comm, uint32_t(peer)); });
  if (status.ok()) advance_epoch(channel, id, least);
  return status;
}

}  // namespace impl

template <class Remote>
GIN_DEVICE void Context::signal(uint32_t peer, Remote remote GIN_SITE_HERE) const {
  GIN_CALL(true);
  const impl::Signal action = impl::to_signal(remote);
  if (action.present && impl::check_peer(channel(), Operation::signal, peer) &&
      impl::check_actions(channel(), Operation::signal, action, impl::no_counter)) {
    impl::send_signal(channel(), peer, action);
  }
}

GIN_DEVICE uint64_t Context::read(uint32_t id GIN_SITE_HERE) const {
  GIN_CALL(true);
  if (!impl::check_id(channel(), Operation::wait, id, comm_.signals)) return 0;
  const uint64_t value = impl::signal_now(channel(), id);
  platform::tell(platform::NoteKind::read, Operation::wait, index_, id, 0, value);
  return value;
}

template <class Coop>
GIN_DEVICE Status Context::wait(Coop coop, uint32_t id, uint64_t least GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  return wait(coop, id, least, comm_.timeout_ns GIN_SITE_PASS);
}

template <class Coop>
GIN_DEVICE Status Context::wait(Coop coop, uint32_t id, uint64_t least, uint64_t timeout_ns GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) status = impl::await_signal(channel(), id, least, -1, timeout_ns);
  return impl::share(coop, status);
}

template <class Coop>
GIN_DEVICE Status Context::wait(Coop coop, uint32_t id, uint64_t least, from sender GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  return wait(coop, id, least, sender, comm_.timeout_ns GIN_SITE_PASS);
}

template <class Coop>
GIN_DEVICE Status Context::wait(Coop coop, uint32_t id, uint64_t least, from sender,
                                uint64_t timeout_ns GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) {
    status = impl::check_peer(channel(), Operation::wait, sender.peer)
                 ? impl::await_signal(channel(), id, least, int32_t(sender.peer), timeout_ns)
                 : impl::failure(comm_);
  }
  return impl::share(coop, status);
}

GIN_DEVICE bool Context::alive(uint32_t peer) const {
  if (!impl::check_peer(channel(), Operation::none, peer) || impl::failed(comm_)) return false;
  return !impl::lost(comm_, peer);
}

template <class Coop>
GIN_DEVICE Found Context::wait_any(Coop coop, const uint32_t* ids, const uint64_t* least,
                                   uint32_t count GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  uint32_t index = count;
  if (coop.leader() && count) {
    status = impl::wait_until(comm_, impl::subject(channel(), Operation::wait, count ? ids[0] : 0), 1, comm_.timeout_ns,
                              [&]() -> uint64_t {
                                for (uint32_t i = 0; i < count; ++i) {
                                  if (test(ids[i], least[i])) {
                                    index = i;
                                    return 1;
                                  }
                                }
                                return 0;
                              });
    if (status.ok()) impl::advance_epoch(channel(), ids[index], least[index]);
  }
  status = impl::share(coop, status);
  return {status, coop.broadcast(index)};
}

template <class Coop>
GIN_DEVICE Status Context::wait_all(Coop coop, const uint32_t* ids, const uint64_t* least,
                                    uint32_t count GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  for (uint32_t i = 0; i < count && status.ok() && coop.leader(); ++i) status = wait(thread, ids[i], least[i]);
  return impl::share(coop, status);
}

template <class Coop>
GIN_DEVICE Status Context::wait_some(Coop coop, const uint32_t* ids, const uint64_t* least, uint32_t count,
                                     uint32_t* which, uint32_t* found GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  const Found first = wait_any(coop, ids, least, count);
  if (coop.leader()) {
    uint32_t hits = 0;
    for (uint32_t i = 0; first.status.ok() && i < count; ++i) {
      if (i == first.index || test(ids[i], least[i])) {
        impl::advance_epoch(channel(), ids[i], least[i]);
        which[hits++] = i;
      }
    }
    *found = hits;
  }
  coop.sync();
  return first.status;
}

GIN_DEVICE uint64_t Context::epoch(uint32_t id) const {
  return impl::check_id(channel(), Operation::wait, id, comm_.signals)
             ? impl::load_relaxed(&comm_.epoch[impl::signal_slot(channel(), id)])
             : 0;
}

GIN_DEVICE uint64_t Context::reset(uint32_t id GIN_SITE_HERE) const {
  GIN_CALL(true);
  if (!impl::check_id(channel(), Operation::wait, id, comm_.signals)) return 0;
  const uint64_t was = impl::signal_now(channel(), id);
  uint64_t* base = &comm_.base[impl::signal_slot(channel(), id)];
  impl::store_relaxed(base, impl::load_relaxed(base) + was);
  impl::store_relaxed(&comm_.epoch[impl::signal_slot(channel(), id)], uint64_t(0));
  platform::tell(platform::NoteKind::reset, Operation::signal, index_, id, was);
  return was;
}

template <class Coop>
GIN_DEVICE Status Context::wait_counter(Coop coop, uint32_t id, uint64_t least GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) {
    if (impl::check_id(channel(), Operation::wait_counter, id, comm_.counters)) {
      status = impl::wait_until(comm_, impl::subject(channel(), Operation::wait_counter, id), least, comm_.timeout_ns,
                                [&] { return impl::counter_now(channel(), id); });
    } else {
      status = impl::failure(comm_);
    }
  }
  return impl::share(coop, status);
}

GIN_DEVICE uint64_t Context::read_counter(uint32_t id GIN_SITE_HERE) const {
  GIN_CALL(true);
  if (!impl::check_id(channel(), Operation::wait_counter, id, comm_.counters)) return 0;
  const uint64_t value = impl::counter_now(channel(), id);
  platform::tell(platform::NoteKind::read, Operation::wait_counter, index_, id, 0, value);
  return value;
}

GIN_DEVICE uint64_t Context::reset_counter(uint32_t id GIN_SITE_HERE) const {
  GIN_CALL(true);
  if (!impl::check_id(channel(), Operation::wait_counter, id, comm_.counters)) return 0;
  const uint64_t was = impl::counter_now(channel(), id);
  uint64_t* base = &comm_.counter_base[impl::counter_slot(channel(), id)];
  impl::store_relaxed(base, impl::load_relaxed(base) + was);
  return was;
}

}  // namespace gin
