// The one loop that every wait of one thread goes through.
#pragma once

#include "../platform/platform.cuh"
#include "../platform/sim.cuh"
#include "failure.cuh"

namespace gin::impl {

GIN_DEVICE void met(Subject subject, uint64_t least, uint64_t value) {
  platform::tell(platform::NoteKind::wait_met, subject.operation, subject.context, subject.id, least, value);
}

// A wait for nobody in particular: no loss of a peer ends it.
struct FromAnybody {
  GIN_DEVICE bool operator()() const { return false; }
};

// Polls `seen()` until it returns at least `least`, the deadline passes (timeout_ns, 0 for none), the job fails, or `gone()`
// says that who was to send it is lost. Called by one thread; says nothing to the rest of its group.
template <class Seen, class Gone = FromAnybody>
GIN_DEVICE Status wait_until(const Comm& comm, Subject subject, uint64_t least, uint64_t timeout_ns, Seen seen,
                             Gone gone = {}) {
  const bool over = failed(comm);  // looked up while the first look at the word is under way
  uint64_t value = seen();
  if (over) return failure(comm);
  if (value >= least) {
    met(subject, least, value);
    return {};
  }
  platform::tell(platform::NoteKind::wait_begins, subject.operation, subject.context, subject.id, least, timeout_ns);
  platform::Waiting waiting(subject.operation, subject.id, least);
  static_assert(platform::polls_per_clock % platform::polls_per_failure == 0);
  uint64_t start = 0;
  for (uint32_t polls = 1; value < least;) {
    if (polls % platform::polls_per_failure == 0) {
      if (failed(comm)) return failure(comm);
      if (gone()) {
        if ((value = seen()) < least) return {Code::remote};
        break;
      }
    }
    if (polls % platform::polls_per_clock == 0 && timeout_ns) {
      const uint64_t now = platform::clock_ns();
      if (!start) start = now;
      if (now - start > timeout_ns) {
        platform::tell(platform::NoteKind::wait_fails, subject.operation, subject.context, subject.id, least, value);
        platform::overdue();
        return fail(comm, Code::timeout, subject, least, value, timeout_ns);
      }
    }
    // A loop of its own, of few instructions: they stand between the word's change and its being seen.
    for (uint32_t looks = waiting.pause(polls); looks && value < least; --looks, ++polls) value = seen();
  }
  met(subject, least, value);
  return {};
}

// The same for something that is either so or not.
template <class Done, class Gone = FromAnybody>
GIN_DEVICE Status wait_for(const Comm& comm, Subject subject, Done done, Gone gone = {}) {
  return wait_until(comm, subject, 1, comm.timeout_ns, [&]() -> uint64_t { return done() ? 1 : 0; }, gone);
}

// Tells the group how its leader's wait ended; a group synchronisation. The others have nothing to say, and pass ok.
template <class Coop>
GIN_DEVICE Status share(Coop coop, Status status) {
  if (!coop.any(!status.ok())) return {};
  uint32_t code = 0;  // bit by bit, as no record holds it where a peer is lost
  for (uint32_t bit = 1; bit <= uint32_t(Code::internal); bit *= 2) {
    if (coop.any((uint32_t(status.code) & bit) != 0)) code |= bit;
  }
  return {Code(code)};
}

}  // namespace gin::impl
