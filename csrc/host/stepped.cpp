// The stepped scheduler: the caller chooses who runs.
#include <string>

#include "../error.h"
#include "fault.h"
#include "scheduler.h"

namespace gin::host {

const Services Scheduler::stepped_services_ = [] {
  Services services = services_;
  services.yield = [](Thread* t) { of(t).give_turn(t, Step::polled); };
  services.pass = [](Thread* t) { of(t).give_turn(t, Step::passed); };
  services.note = [](Thread* t, const Note& note) {
    if (of(t).hooks_.note(t, note)) of(t).give_turn(t, Step::passed);
  };
  return services;
}();

void Scheduler::give_turn(Thread* t, Step step) {
  t->atomics = 0;
  step_ = step;
  leave(t);
}

void Scheduler::begin_block() {
  start_block();
  while (partial_ && !error_) {
    try {
      push(start_thread());
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  if (error_) {
    std::exception_ptr error = error_;
    reset();
    std::rethrow_exception(error);
  }
}

Thread* Scheduler::take_ready() {
  Thread* t = pop();
  if (!t) return nullptr;
  const uint32_t slot = arena_.slot(t);
  if (ready_.size() <= slot) ready_.resize(arena_.used());
  ready_[slot] = 1;
  return t;
}

Step Scheduler::step(Thread* t) {
  FaultScope scope(*this);
  const uint32_t slot = arena_.slot(t);
  ready_[slot] = 0;
  enter(t);
  if (!failure_.empty()) throw_failure();
  if (step_ == Step::polled || step_ == Step::passed) ready_[slot] = 1;
  current_ = nullptr;
  return step_;
}

void Scheduler::deadlock() {
  failure_ = "deadlock: no thread can go on";
  current_ = nullptr;
  throw_failure();
}

bool Scheduler::finished() {
  if (ended_blocks_ < blocks_) return false;
  launch_ = nullptr;
  return true;
}

}  // namespace gin::host
