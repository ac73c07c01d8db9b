// flush, tickets, fence, quiet, barrier.
#pragma once

#include "../context.cuh"
#include "signal.cuh"

namespace gin {

namespace impl {

template <class Gone = FromAnybody>
GIN_DEVICE Status finish(Channel channel, Ticket& ticket, Gone gone = {}) {
  if (!ticket.native) return {};
  return wait_for(
      channel.comm, {Operation::flush, channel.index, int32_t(ticket.peer), 0},
      [&] { return Backend::flush_done(channel, ticket); }, gone);
}

// Where the peer is lost, that nothing is under way any more is no proof that gets from it have landed.
GIN_DEVICE Status finish_of_peer(Channel channel, Ticket& ticket) {
  const auto gone = [&] { return lost(channel.comm, ticket.peer); };
  const Status status = finish(channel, ticket, gone);
  return status.ok() && gone() ? Status{Code::remote} : status;
}

GIN_DEVICE Status flush_all(Channel channel) {
  if (never_native(channel.comm)) return {};
  Status status;
  for (uint32_t peer = 0; peer < channel.comm.size && status.ok(); ++peer) {
    Ticket ticket = Backend::flush_begin(channel, peer);
    status = finish(channel, ticket);
    if (Backend::flush_covers_all_peers_supported) break;
  }
  return status;
}

// The signal words of one barrier index, behind the user's signals: two that take turns for the exchange, then one per round.
GIN_DEVICE uint32_t barrier_word(const Comm& comm, uint32_t index, uint32_t word) {
  return comm.signals + index * comm.rounds + word;
}

// Nobody gets past a barrier that a member never enters, so any loss in the team ends it, whoever is waited for now.
GIN_DEVICE bool misses_a_member(const Comm& comm, Team team) {
  if (!lost(comm, comm.size)) return false;
  for (uint32_t i = 0; i < team.members(comm); ++i) {
    if (lost(comm, team.world(i))) return true;
  }
  return false;
}

GIN_DEVICE Status await_barrier(Channel channel, Team team, uint32_t index, uint32_t word, int32_t peer,
                                uint64_t least) {
  return wait_until(
      channel.comm, {Operation::barrier, channel.index, peer, index}, least, channel.comm.timeout_ns,
      [&] { return raw_signal(channel, word); }, [&] { return misses_a_member(channel.comm, team); });
}

// What this context sent has settled before any member is told of this rank: an ordered signal to each would cover what went to
// that member alone, and not what another one is to read there.
GIN_DEVICE Status drained(Channel channel) {
  if (never_native(channel.comm)) return {};
  static_assert(Backend::quiet_supported, "gin: barrier drains by quiet, which this backend does not have");
  return Backend::quiet(channel);
}

// Everybody signals everybody, itself included. Turns make the count exact: a member can only be one barrier ahead, and then
// it adds to the other word.
GIN_DEVICE Status exchange(Channel channel, Team team, uint32_t index) {
  const Comm& comm = channel.comm;
  uint64_t* entered = &comm.entered[2 * (uint64_t(channel.index) * comm.barriers + index)];
  const uint64_t turn = load_relaxed(entered) + 1;
  store_relaxed(entered, turn);
  const uint32_t members = team.members(comm), word = barrier_word(comm, index, turn & 1);
  const uint32_t me = team.member(comm.rank);
  fence_release();  // once: each would wait until the signal before it has arrived
  for (uint32_t i = 1; i <= members; ++i) {
    send_released(channel, team.world((me + i) % members), Signal{true, false, word, 1});
  }
  return await_barrier(channel, team, index, word, -1, members * ((turn + (turn & 1)) / 2));
}

// ceil(log2(members)) rounds of one signal each. Every round's release passes on the direct stores of those before.
GIN_DEVICE Status disseminate(Channel channel, Team team, uint32_t index) {
  const Comm& comm = channel.comm;
  uint64_t* entered = &comm.entered[2 * (uint64_t(channel.index) * comm.barriers + index) + 1];
  const uint64_t turn = load_relaxed(entered) + 1;
  store_relaxed(entered, turn);
  const uint32_t members = team.members(comm), me = team.member(comm.rank);
  Status status;
  uint32_t word = barrier_word(comm, index, 2);
  for (uint32_t distance = 1; distance < members && status.ok(); distance *= 2, ++word) {
    fence_release();
    send_released(channel, team.world((me + distance) % members), Signal{true, false, word, 1});
    const uint32_t before = team.world((me + members - distance) % members);
    status = await_barrier(channel, team, index, word, int32_t(before), turn);
  }
  return status;
}

constexpr uint32_t exchange_members = 8;  // up to here one exchange takes less time than rounds of it

// A team is made of ranks, this one among them.
GIN_DEVICE bool check_team(Channel channel, Team team, uint32_t index) {
  const Comm& comm = channel.comm;
  const uint64_t members = team.members(comm), last = team.start + uint64_t(team.stride) * (members - 1);
  const bool regular = team.stride != 0 && last < comm.size;
  const bool member = regular && comm.rank >= team.start && (comm.rank - team.start) % team.stride == 0 &&
                      (comm.rank - team.start) / team.stride < members;
  return member || refuse(channel, Operation::barrier, comm.rank, index, comm.size, last);
}

GIN_DEVICE bool check_barrier(Channel channel, Team team, uint32_t index) {
  return !GIN_CHECK ||
         (check_id(channel, Operation::barrier, index, channel.comm.barriers) && check_team(channel, team, index));
}

}  // namespace impl

template <class Coop>
GIN_DEVICE Status Context::flush(Coop coop GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) {
    status = impl::check_context(channel(), Operation::flush) ? impl::flush_all(channel()) : impl::failure(comm_);
  }
  return impl::share(coop, status);
}

GIN_DEVICE Ticket Context::flush_async(uint32_t peer GIN_SITE_HERE) const {
  GIN_CALL(true);
  if (!impl::check_peer(channel(), Operation::flush, peer) || impl::never_native(comm_)) return {{0, 0}, peer, false};
  return Backend::flush_begin(channel(), peer);
}

GIN_DEVICE bool Context::test(Ticket& ticket GIN_SITE_HERE) const {
  GIN_CALL(true);
  return !ticket.native || Backend::flush_done(channel(), ticket);
}

template <class Coop>
GIN_DEVICE Status Context::wait(Coop coop, Ticket ticket GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) status = impl::finish_of_peer(channel(), ticket);
  return impl::share(coop, status);
}

template <class Coop>
GIN_DEVICE Status Context::fence(Coop coop GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  impl::fence_system();
  if (coop.leader() && !impl::check_context(channel(), Operation::fence)) {
    status = impl::failure(comm_);
  } else if (coop.leader() && !impl::never_native(comm_)) {
    // Direct stores after native puts are ordered by nobody but us.
    if (comm_.has(Comm::mixed)) {
      status = Backend::quiet(channel());
    } else {
      status = Backend::fence(channel());
    }
  }
  return impl::share(coop, status);
}

template <class Coop>
GIN_DEVICE Status Context::quiet(Coop coop GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  static_assert(Backend::quiet_supported && sizeof(Coop),
                "gin: this backend has no quiet; use an ordered signal, or barrier with drain");
  coop.sync();
  Status status;
  impl::fence_system();
  if (coop.leader() && !impl::check_context(channel(), Operation::quiet)) {
    status = impl::failure(comm_);
  } else if (coop.leader() && !impl::never_native(comm_)) {
    status = Backend::quiet(channel());
  }
  return impl::share(coop, status);
}

template <class Coop>
GIN_DEVICE Status Context::barrier(Coop coop, Team team, uint32_t index, bool drain GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  Status status;
  if (coop.leader()) {
    if (!impl::check_barrier(channel(), team, index)) {
      status = impl::failure(comm_);
    } else {
      if (drain) status = impl::drained(channel());
      if (status.ok()) {
        status = team.members(comm_) <= impl::exchange_members ? impl::exchange(channel(), team, index)
                                                               : impl::disseminate(channel(), team, index);
      }
    }
  }
  return impl::share(coop, status);
}

}  // namespace gin
