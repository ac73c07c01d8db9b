// Launches, their blocks and threads.
#include <algorithm>

#include "sim/simulation.h"

namespace gin::sim {

using host::Step;

void Simulation::launch(uint32_t rank, host::Launch launch) {
  launch.check();
  Rank& r = ranks_[check(rank)];
  if (r.error || r.dead) return;
  if (trace_.on() && std::find(modules_.begin(), modules_.end(), launch.module) == modules_.end())
    modules_.push_back(launch.module);
  r.queue.push_back(std::move(launch));
  begin_next(rank);
}

uint64_t Simulation::pending(uint32_t rank) const {
  const Rank& r = ranks_[check(rank)];
  return r.queue.size() + (r.running ? 1 : 0);
}

void Simulation::raise_error(uint32_t rank) {
  if (std::exception_ptr error = std::exchange(ranks_[check(rank)].error, nullptr)) std::rethrow_exception(error);
}

void Simulation::begin_next(uint32_t rank) {
  Rank& r = ranks_[rank];
  while (!r.running && !r.queue.empty()) {
    host::Launch launch = std::move(r.queue.front());
    r.queue.pop_front();
    begin(rank, std::move(launch));
  }
}

void Simulation::begin(uint32_t rank, host::Launch launch) {
  Rank& r = ranks_[rank];
  auto running = std::make_unique<Running>();
  running->launch = std::move(launch);
  running->rank = rank;
  running->number = ++r.launches;
  try {
    running->scheduler = take_scheduler();
    running->scheduler->start(running->launch);
  } catch (...) {
    if (running->scheduler) spare_.push_back(std::move(running->scheduler));
    r.error = std::current_exception();
    r.queue.clear();
    return;
  }
  if (trace_.on()) trace_.add(agenda_.now(), Kind::launch, rank).value = running->number;
  const uint32_t starter = take_task(rank);
  tasks_[starter].running = running.get();
  running->starter = starter;
  running->able = 1;
  r.running = std::move(running);
  make_ready(starter, options_.hostile ? random_.spread(1, 1 << 14) : options_.model.launch_ns);
}

std::unique_ptr<host::Scheduler> Simulation::take_scheduler() {
  if (spare_.empty()) return std::make_unique<host::Scheduler>(*this, options_.max_threads, true);
  std::unique_ptr<host::Scheduler> scheduler = std::move(spare_.back());
  spare_.pop_back();
  return scheduler;
}

// -- blocks -------------------------------------------------------------------------------------------------------

void Simulation::start_blocks(uint32_t index) {
  Running& running = *tasks_[index].running;
  host::Scheduler& scheduler = *running.scheduler;
  progress();
  try {
    do {
      scheduler.begin_block();
    } while (!options_.hostile && scheduler.can_start_block());
  } catch (...) {
    ended(running, std::current_exception());
    return;
  }
  take_ready(running);
  if (scheduler.can_start_block()) {
    make_ready(index, random_.spread(1, 1024));
  } else {
    tasks_[index].state = State::blocked;
    --running.able;
  }
}

// When blocks have ended there may be room for others.
void Simulation::restart_blocks(Running& running) {
  if (tasks_[running.starter].state != State::blocked || !running.scheduler->can_start_block()) return;
  ++running.able;
  make_ready(running.starter, 0);
}

// Threads that the scheduler says are able to run now: new ones, and those that were blocked.
void Simulation::take_ready(Running& running) {
  while (host::Thread* thread = running.scheduler->take_ready()) {
    const uint32_t number = running.scheduler->number(thread);
    if (running.tasks.size() <= number) running.tasks.resize(running.scheduler->threads_made());
    uint32_t& task = running.tasks[number];
    if (!task) {
      task = take_task(running.rank) + 1;
      tasks_[task - 1].thread = thread;
      tasks_[task - 1].running = &running;
    }
    ++running.able;
    make_ready(task - 1, options_.hostile ? random_.spread(1, 128) : 0);
  }
}

// -- threads ------------------------------------------------------------------------------------------------------

void Simulation::step_thread(uint32_t index) {
  Running& running = *tasks_[index].running;
  host::Thread* thread = tasks_[index].thread;
  thread_ = thread;
  current_ = index;
  clock_reads_ = 0;
  deadline_ = 0;
  posted_ = rang_ = turns_ = reads_ = acts_ = spins_ = false;
  watch_.id = 0;
  operations_before_ = network_.operations();
  if (tasks_[index].looks_in_row == few_looks) thread->what = nullptr, thread->polling = 0;
  Step step;
  try {
    step = running.scheduler->step(thread);
  } catch (...) {
    thread_ = nullptr;
    ended(running, std::current_exception());
    return;
  }
  thread_ = nullptr;
  after_step(index, step);
  take_ready(running);
  if (step == Step::ended) {
    if (running.scheduler->finished()) {
      ended(running, nullptr);
      return;
    }
    restart_blocks(running);
  }
  if (running.able) return;
  try {
    running.scheduler->deadlock();
  } catch (...) {
    ended(running, std::current_exception());
  }
}

void Simulation::after_step(uint32_t index, Step step) {
  Task& task = tasks_[index];
  Running& running = *task.running;
  const bool begins = task.thread->fresh;
  const uint32_t rank = task.rank;
  if (spins_) {
    park_loop(index);
    return;
  }
  // Kernels that tell nothing may have written to a ring.
  if (rang_ || (!running.tells && (step != Step::polled || begins))) wake_proxies(rank);
  if (step != Step::polled || begins) {  // it did something that others may wait for
    progress();
    if (direct_) {
      wake_all();
    } else {
      wake(rank);
    }
  }
  switch (step) {
    case Step::polled:
      task.thread->fresh = 0;
      park(index, begins);
      break;
    case Step::passed:
      // One that only spins must not keep the others from running.
      if (agenda_.by_priority() && !turns_ && ++task.passes % 16 == 0) task.priority = low_++;
      make_ready(index, turn_delay(index));
      break;
    case Step::blocked:
      task.state = State::blocked;
      --running.able;
      break;
    case Step::ended:
      running.tasks[running.scheduler->number(task.thread)] = 0;
      free_task(index);
      --running.able;
      break;
  }
}

// -- ends ---------------------------------------------------------------------------------------------------------

void Simulation::forget(Running& running) {
  for (uint32_t task : running.tasks)
    if (task) free_task(task - 1);
  free_task(running.starter);
  spare_.push_back(std::move(running.scheduler));
  trace_.forget_addresses();
}

void Simulation::ended(Running& running, std::exception_ptr error) {
  const uint32_t rank = running.rank;
  Rank& r = ranks_[rank];
  if (!running.scheduler->captured().empty()) r.captured = running.scheduler->captured();
  if (trace_.on()) {
    Record& record = trace_.add(agenda_.now(), Kind::end, rank);
    record.value = running.number;
    record.value2 = error ? 1 : 0;
  }
  if (error) r.crash = running.scheduler->crash();
  forget(running);
  r.running.reset();
  last_move_ = steps_;
  if (error) {
    network_.forget_stacks(rank);
    r.error = error;
    r.queue.clear();
  }
  begin_next(rank);
  if (r.wanted && found_ == stuck && pending(rank) == 0) found_ = rank;
}

void Simulation::kill(uint32_t rank) {
  Rank& r = ranks_[check(rank)];
  if (r.dead) return;
  r.dead = true;
  r.queue.clear();
  network_.kill(rank);
  if (r.running) {
    r.running->scheduler->stop();
    forget(*r.running);
    r.running.reset();
  }
  progress();
  if (r.wanted && found_ == stuck) found_ = rank;
  for (uint32_t other = 0; other < size(); ++other) changed(other);
}

}  // namespace gin::sim
