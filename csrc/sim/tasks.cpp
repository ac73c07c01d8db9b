// Who gets turns, and when.
#include "sim/simulation.h"

namespace gin::sim {
namespace {

constexpr uint64_t first_pause_ns = 10'000;  // until what waits looks again although nothing has changed
constexpr uint64_t loop_pause_ns = 1000;     // between two looks of a loop that does nothing else
constexpr uint64_t many_looks = 1u << 18;    // in vain, after which its pauses grow
constexpr uint64_t plain_turn_ns = 10;

}  // namespace

uint32_t Simulation::take_task(uint32_t rank) {
  uint32_t index;
  if (free_tasks_.empty()) {
    index = uint32_t(tasks_.size());
    tasks_.emplace_back();
  } else {
    index = free_tasks_.back();
    free_tasks_.pop_back();
  }
  Task& task = tasks_[index];
  const uint32_t generation = task.generation;
  task = {};
  task.generation = generation;
  task.rank = rank;
  task.state = State::running;
  if (agenda_.by_priority()) task.priority = (1u << 20) + choice_.below(1u << 30);
  return index;
}

void Simulation::free_task(uint32_t index) {
  Task& task = tasks_[index];
  if (task.state == State::parked && task.thread) unpark(index);
  ++task.generation;
  task.state = State::free;
  task.thread = nullptr;
  task.running = nullptr;
  task.proxy = nullptr;
  free_tasks_.push_back(index);
}

void Simulation::make_ready(uint32_t index, uint64_t delay) {
  Task& task = tasks_[index];
  task.state = State::ready;
  agenda_.add(What::task, index, task.generation & 0xffffff, delay, task.priority);
}

// A thread that has looked in vain; `begins`: for the first time in this wait. Only time makes its pauses longer: it may be
// woken any number of times by what it does not wait for.
void Simulation::park(uint32_t index, bool begins) {
  Task& task = tasks_[index];
  if (begins) {
    task.pause = first_pause_ns;
    task.deadline = deadline_;
    task.watched = reinterpret_cast<const uint64_t*>(watch_.id);
    task.wanted = watch_.first;
    task.failed = reinterpret_cast<const uint32_t*>(watch_.second);
  } else if (task.look_at > agenda_.now()) {
    await_look(index, task.look_at);
    return;
  } else {
    task.pause += task.pause / 2;
  }
  const uint64_t next = agenda_.now() + task.pause;
  const bool late = task.deadline > agenda_.now() && next > task.deadline;
  await_look(index, late ? task.deadline + 1 : next);
}

// A thread whose loop does nothing but look. It may count: time goes on as it would, until it is clear that nothing else is
// to come.
void Simulation::park_loop(uint32_t index) {
  Task& task = tasks_[index];
  task.pause = ++vain_looks_ < many_looks ? loop_pause_ns : task.pause + task.pause / 2;
  task.deadline = 0;
  task.watched = nullptr;
  await_look(index, agenda_.now() + task.pause);
}

void Simulation::await_look(uint32_t index, uint64_t time) {
  Task& task = tasks_[index];
  std::vector<uint32_t>& parked = ranks_[task.rank].parked;
  task.state = State::parked;
  task.at = uint32_t(parked.size());
  parked.push_back(index);
  const uint64_t before = task.look_at;
  task.look_at = time;
  if (task.looks && before <= task.look_at) return;
  task.looks = true;
  agenda_.add_look(index, task.generation & 0xffffff, task.look_at);
}

// Whether what the task watches says that it would look in vain.
bool Simulation::waits_on(const Task& task) {
  return task.watched && int64_t(*task.watched - task.wanted) < 0 && !*task.failed;
}

void Simulation::unpark(uint32_t index) {
  Task& task = tasks_[index];
  std::vector<uint32_t>& parked = ranks_[task.rank].parked;
  const uint32_t last = parked.back();
  parked[task.at] = last;
  tasks_[last].at = task.at;
  parked.pop_back();
  task.state = State::running;
}

// Something has changed that threads of the rank may wait for.
void Simulation::wake(uint32_t rank) {
  std::vector<uint32_t>& parked = ranks_[rank].parked;
  uint32_t left = 0;
  for (uint32_t index : parked) {
    if (waits_on(tasks_[index])) {
      tasks_[index].at = left;
      parked[left++] = index;
    } else {
      make_ready(index, wake_delay());
    }
  }
  parked.resize(left);
}

void Simulation::wake_all() {
  for (uint32_t rank = 0; rank < size(); ++rank) wake(rank);
}

void Simulation::wake_proxies(uint32_t rank) {
  if (ranks_[rank].dead) return;
  for (const auto& [index, proxy] : ranks_[rank].proxies)
    if (tasks_[index].state == State::parked) make_ready(index, wake_delay());
}

void Simulation::changed(uint32_t rank) {
  if (thread_) posted_ = true;
  wake(rank);
  wake_proxies(rank);
}

uint64_t Simulation::wake_delay() { return options_.hostile ? random_.spread(1, 256) : options_.model.poll_ns; }

// How long what a task has just done took.
uint64_t Simulation::turn_delay(uint32_t index) {
  if (!options_.hostile) return posted_ || rang_ ? options_.model.post_ns : plain_turn_ns;
  const uint64_t drawn = random_.next();
  if (drawn % 64 != 0 || !options_.stalls) return 8 + (drawn >> 32) % 256;
  if (drawn / 64 % 8 != 0) return 256 + (drawn >> 32) % (1 << 14);
  stall(index);
  return 256;
}

// The task's block, or its whole rank, does nothing for a while.
void Simulation::stall(uint32_t index) {
  if (agenda_.by_priority()) return;
  const uint64_t ns = random_.spread(1 << 12, 1 << 19);
  const Task& task = tasks_[index];
  if (task.thread && random_.one_in(2)) {
    static_cast<host::BlockState*>(task.thread->block)->stalled = agenda_.now() + ns;
    return;
  }
  ranks_[task.rank].stalled = agenda_.now() + ns;
  if (trace_.on()) trace_.add(agenda_.now(), Kind::stall, task.rank).value = ns;
}

// -- proxies ------------------------------------------------------------------------------------------------------

void Simulation::add_proxy(uint32_t rank, std::shared_ptr<proxy::Proxy> proxy) {
  const uint32_t index = take_task(check(rank));
  tasks_[index].proxy = proxy.get();
  tasks_[index].state = State::parked;
  ranks_[rank].proxies.emplace_back(index, std::move(proxy));
  wake_proxies(rank);
}

void Simulation::remove_proxy(uint32_t rank, const proxy::Proxy& proxy) {
  std::erase_if(ranks_[check(rank)].proxies, [&](const auto& entry) {
    if (entry.second.get() != &proxy) return false;
    free_task(entry.first);
    return true;
  });
}

void Simulation::step_proxy(uint32_t index) {
  const uint32_t rank = tasks_[index].rank;
  if (ranks_[rank].dead) {
    tasks_[index].state = State::parked;
    return;
  }
  posted_ = rang_ = false;
  if (!tasks_[index].proxy->step()) {
    tasks_[index].state = State::parked;
    return;
  }
  progress();
  wake(rank);
  make_ready(index, options_.hostile ? turn_delay(index) : options_.model.proxy_ns);
}

}  // namespace gin::sim
