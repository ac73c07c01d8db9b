#include "sim/simulation.h"

#include <algorithm>
#include <utility>

#include "error.h"

namespace gin::sim {
namespace {

constexpr uint64_t hopeless_ns = 864'000'000'000'000;  // ten days in which all that waits looked in vain
constexpr uint64_t clock_read_ns = 20;                 // so that a loop that reads the clock and nothing else ends

}  // namespace

Simulation::Simulation(uint32_t ranks, const Options& options)
    : options_(options),
      random_(options.seed),
      choice_(options.seed ^ 0x5eed'0f'c401ce5ull),
      agenda_(options.hostile && options.policy == Policy::pct),
      network_(ranks, options_, agenda_, random_, trace_, *this),
      ranks_(ranks) {
  if (ranks == 0 || ranks > (1u << 16))
    throw Error(Error::Kind::config, "a simulation has 1 to 65536 ranks, not " + std::to_string(ranks));
  trace_.turn(options.trace);
  if (!agenda_.by_priority()) return;
  for (uint64_t i = 1; i < options.depth; ++i) preemptions_.push_back(1 + choice_.below(options.steps));
  std::sort(preemptions_.rbegin(), preemptions_.rend());
}

Simulation::~Simulation() { close(); }

void Simulation::close() {
  network_.let_go();
  for (Rank& rank : ranks_) {
    rank.queue.clear();
    for (const auto& [task, proxy] : rank.proxies) free_task(task);
    rank.proxies.clear();  // whose wires keep the simulation
    if (!rank.running) continue;
    rank.running->scheduler->stop();
    forget(*rank.running);
    rank.running.reset();
  }
  spare_.clear();  // and their stacks: whoever holds the simulation for what it recorded does not hold those
}

uint32_t Simulation::check(uint32_t rank) const {
  if (rank < ranks_.size()) return rank;
  throw Error(Error::Kind::config,
              "rank " + std::to_string(rank) + " is not one of the simulation's " + std::to_string(ranks_.size()));
}

std::shared_ptr<wire::Fabric> Simulation::fabric(uint32_t rank, uint32_t group) {
  if (group >= (1u << 11)) throw Error(Error::Kind::config, "a simulation has at most 2048 communicators");
  return network_.fabric(check(rank), group);
}

// -- the loop -----------------------------------------------------------------------------------------------------

// What handlers of signals need.
host::Watchdog& Simulation::prepare_os_thread() {
  if (!signal_stack_) signal_stack_ = std::make_unique<host::SignalStack>();
  if (!watchdog_ || !watchdog_->is_mine()) watchdog_ = std::make_unique<host::Watchdog>(options_.spin_limit_ms);
  return *watchdog_;
}

int64_t Simulation::run(const std::vector<uint32_t>& ranks, uint64_t most, uint64_t until) {
  last_move_ = steps_;
  progress();
  return resume(ranks, most, until);
}

int64_t Simulation::resume(const std::vector<uint32_t>& ranks, uint64_t most, uint64_t until) {
  for (uint32_t rank : ranks)
    if (pending(rank) == 0) return rank;
  const host::Watchdog::Watch watch(prepare_os_thread());
  for (uint32_t rank : ranks) ranks_[rank].wanted = true;
  found_ = stuck;
  int64_t outcome = stuck;
  for (uint64_t done = 0;; ++done) {
    if (found_ != stuck) {
      outcome = found_;
      break;
    }
    if (done == most || agenda_.idle_until(until)) {
      outcome = interrupted_run;
      break;
    }
    if (!next()) break;
  }
  for (uint32_t rank : ranks) ranks_[rank].wanted = false;
  return outcome;
}

bool Simulation::drain(uint64_t most) {
  const host::Watchdog::Watch watch(prepare_os_thread());
  for (uint32_t rank = 0; rank < size(); ++rank) wake_proxies(rank);
  last_move_ = steps_;
  progress();
  for (uint64_t done = 0; agenda_.pressing(); ++done) {
    if (done == most) return false;
    if (!next()) break;
  }
  return true;
}

// The next thing that happens; false when nothing does any more.
bool Simulation::next() {
  if (agenda_.empty() || given_up()) return false;
  ++steps_;
  const Event event = agenda_.pop();
  switch (What(event.what)) {
    case What::task:
      take_turn(event.index, event.tag);
      break;
    case What::look:
      look_again(event.index, event.tag);
      break;
    case What::stage:
      progress();
      last_move_ = steps_;
      network_.happen(event.index, event.tag);
      break;
    case What::nudge:
      progress();
      changed(event.index);
      break;
    case What::kill:
      kill(event.index);
      break;
  }
  return true;
}

// Whether all that could still happen is looking in vain, or too much has.
bool Simulation::given_up() {
  if (exhausted()) return true;
  const bool hopeless = !agenda_.pressing() && agenda_.now() - progress_time_ > hopeless_ns;
  if (!hopeless && steps_ - last_move_ <= options_.patience) return false;
  agenda_.rewind(progress_time_);
  return true;
}

void Simulation::progress() {
  progress_time_ = agenda_.now();
  vain_looks_ = 0;
}

void Simulation::take_turn(uint32_t index, uint32_t generation) {
  Task& task = tasks_[index];
  if ((task.generation & 0xffffff) != generation || task.state != State::ready || postponed(index)) return;
  task.state = State::running;
  if (task.proxy) {
    step_proxy(index);
  } else if (task.thread) {
    step_thread(index);
  } else {
    start_blocks(index);
  }
}

// A rank or block that is stalled keeps its tasks waiting, and a preemption lets others go first.
bool Simulation::postponed(uint32_t index) {
  Task& task = tasks_[index];
  if (agenda_.by_priority()) {
    agenda_.advance(10);
    if (preemptions_.empty() || steps_ < preemptions_.back()) return false;
    preemptions_.pop_back();
    task.priority = low_++;
    make_ready(index, 0);
    return true;
  }
  uint64_t until = ranks_[task.rank].stalled;
  if (task.thread) until = std::max(until, static_cast<host::BlockState*>(task.thread->block)->stalled);
  if (until <= agenda_.now()) return false;
  make_ready(index, until - agenda_.now());
  return true;
}

void Simulation::look_again(uint32_t index, uint32_t generation) {
  Task& task = tasks_[index];
  if ((task.generation & 0xffffff) != generation) return;
  task.looks = false;
  if (task.state != State::parked) return;
  if (task.look_at > agenda_.now()) {  // it has looked since this was put on the agenda
    task.looks = true;
    agenda_.add_look(index, task.generation & 0xffffff, task.look_at);
    return;
  }
  unpark(index);
  task.state = State::running;
  step_thread(index);
}

// -- what the thread that runs asks ---------------------------------------------------------------------------------

uint64_t Simulation::now_ns() {
  if (++clock_reads_ > 64) agenda_.advance(clock_read_ns);
  return agenda_.now();
}

bool Simulation::note(host::Thread* thread, const host::Note& note) {
  const uint32_t rank = tasks_[current_].rank;
  tasks_[current_].running->tells = true;
  switch (note.kind) {
    case host::NoteKind::call_ends:
      spins_ = only_looks(*thread);
      turns_ = options_.hostile || posted_ || rang_ || spins_;
      return turns_;
    case host::NoteKind::descriptor:
      rang_ = true;
      if (trace_.on()) keep_site(rank, note, thread->call);
      return false;
    case host::NoteKind::watch:
      watch_ = note;
      return false;
    case host::NoteKind::read:
    case host::NoteKind::reset:
      // A reset of what is 0 is a look as well.
      (note.kind == host::NoteKind::read || note.first == 0 ? reads_ : acts_) = true;
      read_ = note;
      if (trace_.on() && vain_looks_ < few_looks) record(rank, *thread, note);
      return false;
    case host::NoteKind::wait_begins:
      deadline_ = note.second ? agenda_.now() + note.second : 0;
      [[fallthrough]];
    default:
      acts_ = true;
      if (trace_.on()) record(rank, *thread, note);
      return false;
  }
}

// A gin operation of the thread has ended. Whether it is one more of those that do nothing but look, and of which there have
// been so many in a row that the thread waits by them.
bool Simulation::only_looks(host::Thread& thread) {
  Task& task = tasks_[current_];
  const bool acts = rang_ || acts_ || network_.operations() != operations_before_;
  const bool reads = std::exchange(reads_, false);
  acts_ = false;
  operations_before_ = network_.operations();
  if (acts || (direct_ && !reads)) {  // what is loaded and stored is not seen here
    task.looks_in_row = 0;
    return false;
  }
  if (task.looks_in_row < few_looks) {
    ++task.looks_in_row;
    return false;
  }
  const bool counter = read_.operation == uint32_t(Operation::wait_counter);
  thread.what = !reads    ? "a loop of operations that do nothing, as after a failure"
                : counter ? "a loop that only looks at counter {}, which is {}"
                          : "a loop that only looks at signal {}, which is {}";
  thread.value = read_.id;
  thread.detail = read_.second;
  thread.file = thread.call->file;
  thread.line = thread.call->line;
  thread.polling = 1;
  return true;
}

void Simulation::record(uint32_t rank, const host::Thread& thread, const host::Note& note) {
  static constexpr Kind kinds[] = {Kind::wait, Kind::met, Kind::overdue, Kind::read, Kind::reset};
  Record& to = trace_.add(agenda_.now(), kinds[uint32_t(note.kind) - uint32_t(host::NoteKind::wait_begins)], rank);
  to.op = uint8_t(note.operation);
  to.context = uint16_t(note.context);
  to.offset = note.id;
  to.value = note.first;
  to.value2 = note.second;
  if (!thread.call) return;
  to.file = trace_.file(thread.call->file);
  to.line = thread.call->line;
}

// -- where operations come from -------------------------------------------------------------------------------------

void Simulation::keep_site(uint32_t rank, const host::Note& note, const host::Call* call) {
  std::vector<Sites>& sites = ranks_[rank].sites;
  if (sites.size() <= note.context) sites.resize(note.context + 1);
  if (!call) return;
  Site site{call->file, call->line};
  const char* source = reinterpret_cast<const char*>(note.first);
  if (source && network_.has(rank, source, note.second)) {  // it may be out of range
    site.source = source;
    site.bytes = note.second;
    site.sum = checksum(source, note.second);
  }
  sites[note.context].keep(note.id, site);
}

// A kernel's thread posts itself, or has left word for the proxy.
Site Simulation::site(uint32_t rank, uint32_t context, uint64_t token) {
  if (thread_) return thread_->call ? Site{thread_->call->file, thread_->call->line} : Site{};
  std::vector<Sites>& sites = ranks_[rank].sites;
  return context < sites.size() ? sites[context].take(token) : Site{};
}

std::string Simulation::report() const {
  constexpr size_t most = 64;
  std::string text = network_.report();
  size_t shown = 0, left = 0;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (!ranks_[rank].running) continue;
    if (shown++ < most) {
      text += "\nrank " + std::to_string(rank) + ": " + ranks_[rank].running->scheduler->report();
    } else {
      ++left;
    }
  }
  if (left) text += "\n... and " + std::to_string(left) + " more ranks with running kernels";
  return text;
}

}  // namespace gin::sim
