// The one loop that every wait of one thread goes through.
#pragma once

#include "../platform/platform.cuh"
#include "../platform/sim.cuh"
#include "failure.cuh"

namespace gin::impl {

GIN_DEVICE void met(Subject subject, uint64_t least, uint64_t value) {
  platform::tell(platform::NoteKind::wait_met, subject.operation, subject.context, subject.id, least, value);
}

// Polls `seen()` until it returns at least `least`, the deadline passes (timeout_ns, 0 for none) or the job fails. Called by
// one thread; says nothing to the rest of its group.
template <class Seen>
GIN_DEVICE Status wait_until(const Comm& comm, Subject subject, uint64_t least, uint64_t timeout_ns, Seen seen) {
  const bool over = failed(comm);  // looked up while the first look at the word is under way
  uint64_t value = seen();
  if (over) return failure(comm);
  if (value >= least) {
    met(subject, least, value);
    return {};
  }
  platform::tell(platform::NoteKind::wait_begins, subject.operation, subject.context, subject.id, least, timeout_ns);
  platform::Waiting waiting(subject.operation, subject.id, least);
  uint64_t start = 0;
  for (uint32_t polls = 1; value < least; ++polls) {
    if (polls % platform::polls_per_failure == 0 && failed(comm)) return failure(comm);
    if (polls % platform::polls_per_clock == 0 && timeout_ns) {
      const uint64_t now = platform::clock_ns();
      if (!start) start = now;
      if (now - start > timeout_ns) {
        platform::tell(platform::NoteKind::wait_fails, subject.operation, subject.context, subject.id, least, value);
        platform::overdue();
        return fail(comm, Code::timeout, subject, least, value, timeout_ns);
      }
    }
    waiting.poll();
    value = seen();
  }
  met(subject, least, value);
  return {};
}

// The same for something that is either so or not.
template <class Done>
GIN_DEVICE Status wait_for(const Comm& comm, Subject subject, Done done) {
  return wait_until(comm, subject, 1, comm.timeout_ns, [&]() -> uint64_t { return done() ? 1 : 0; });
}

// Tells the group how its leader's wait ended; a group synchronisation.
template <class Coop>
GIN_DEVICE Status share(const Comm& comm, Coop coop, Status status) {
  return coop.any(!status.ok()) ? (status.ok() ? failure(comm) : status) : Status{};
}

}  // namespace gin::impl
