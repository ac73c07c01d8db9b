// A whole job in one OS thread: the kernels of all ranks, their proxies and the network between them, in virtual time.
//
// Everything that can happen next is in one agenda. A thread of a kernel runs until it polls, passes, blocks or ends a gin
// operation; what it looked for in vain parks it until something of its rank has changed, or time has passed. The seed draws
// how long everything takes, or, by the priority-based policy (PCT), who goes first; nothing else takes part in a choice.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "host/fault.h"
#include "host/scheduler.h"
#include "host/watchdog.h"
#include "proxy/proxy.h"
#include "sim/agenda.h"
#include "sim/network.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/trace.h"

namespace gin::sim {

class Simulation final : public host::Hooks, public Listener {
 public:
  Simulation(uint32_t ranks, const Options& options);
  ~Simulation() override;
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // `group`: the number of the communicator in the job.
  std::shared_ptr<wire::Fabric> fabric(uint32_t rank, uint32_t group = 0);

  // Queues a launch on the rank; gin::Error{config} when its shape is refused. After an error, launches of the rank are
  // dropped until raise_error.
  void launch(uint32_t rank, host::Launch launch);
  uint64_t pending(uint32_t rank) const;

  // A proxy that nobody else steps, kept until it is removed.
  void add_proxy(uint32_t rank, std::shared_ptr<proxy::Proxy> proxy);
  void remove_proxy(uint32_t rank, const proxy::Proxy& proxy);

  // Goes on until a listed rank has no pending launch, and returns it. stuck: nothing can move any more. interrupted:
  // `most` steps have been made, or nothing is to come up to the time `until`. resume() goes on with the run that made too many
  // steps: what has been waited for in vain up to now counts.
  static constexpr int64_t stuck = -1, interrupted_run = -2;
  int64_t run(const std::vector<uint32_t>& ranks, uint64_t most = UINT64_MAX, uint64_t until = UINT64_MAX);
  int64_t resume(const std::vector<uint32_t>& ranks, uint64_t most = UINT64_MAX, uint64_t until = UINT64_MAX);
  // Lets proxies and network go on until nothing is in flight. False after `most` steps.
  bool drain(uint64_t most = UINT64_MAX);

  // Throws the first error of the rank's launches since the last call.
  void raise_error(uint32_t rank);
  // What a thread of the rank's last launch with an error was ended for.
  const host::Crash& crash(uint32_t rank) const { return ranks_[check(rank)].crash; }
  std::string captured(uint32_t rank) const { return ranks_[check(rank)].captured; }
  // Where the threads of all ranks stand.
  std::string report() const;
  void kill(uint32_t rank);
  // The end: kernels that still run are stopped, and from now on nothing touches the ranks' memory. Nothing may be run after it.
  void close();
  bool dead(uint32_t rank) const { return ranks_[check(rank)].dead; }
  // Whether it has made as many steps as it may.
  bool exhausted() const { return options_.most_steps && steps_ >= options_.most_steps; }
  // These bytes are about to be no memory of the job's any more: what is in flight does not touch them.
  void forget_memory(const char* from, uint64_t bytes) { network_.forget_memory(from, bytes); }

  // From now on ranks may load and store each other's memory, which nothing here sees.
  void set_direct() { direct_ = true; }

  uint64_t now() const { return agenda_.now(); }
  uint64_t operations() const { return network_.operations(); }
  uint64_t steps() const { return steps_; }
  uint32_t size() const { return uint32_t(ranks_.size()); }
  Trace& trace() { return trace_; }

  // Hooks: asked by the thread that runs.
  uint64_t now_ns() override;
  uint64_t cycles() override { return now_ns(); }
  bool idle(uint32_t) override { return false; }
  void pass(uint32_t) override {}
  bool interrupted(host::Scheduler&) override { return false; }
  bool note(host::Thread* thread, const host::Note& note) override;

  // Listener: told by the network.
  void changed(uint32_t rank) override;
  Site site(uint32_t rank, uint32_t context, uint64_t token) override;

 private:
  struct Running;

  enum class State : uint8_t { free, ready, running, parked, blocked };

  // Something that gets turns: a thread, the start of a launch's blocks, or a proxy.
  struct Task {
    host::Thread* thread = nullptr;
    Running* running = nullptr;
    proxy::Proxy* proxy = nullptr;
    uint32_t rank = 0;
    uint32_t generation = 0;
    uint32_t at = 0;  // its place among the parked of its rank
    State state = State::free;
    bool looks = false;  // a look is on the agenda
    uint64_t pause = 0;  // until its next look
    uint64_t look_at = 0;
    uint64_t deadline = 0;  // when its wait gives up, 0 for never
    uint64_t priority = 0;
    uint32_t passes = 0;
    uint32_t looks_in_row = 0;  // gin operations that only look, at signals and counters or for nothing
    // What its wait watches: nothing else ends it.
    const uint64_t* watched = nullptr;
    uint64_t wanted = 0;
    const uint32_t* failed = nullptr;
  };

  // A launch that has begun.
  struct Running {
    host::Launch launch;
    std::unique_ptr<host::Scheduler> scheduler;
    std::vector<uint32_t> tasks;  // by thread number; task + 1
    uint32_t able = 0;            // of its tasks, that are not blocked
    uint32_t starter = 0;         // the task that starts blocks
    uint32_t rank = 0;
    uint64_t number = 0;
    bool tells = false;  // compiled for the simulator
  };

  struct Rank {
    std::deque<host::Launch> queue;
    std::unique_ptr<Running> running;
    std::vector<uint32_t> parked;
    std::vector<std::pair<uint32_t, std::shared_ptr<proxy::Proxy>>> proxies;  // with their tasks
    std::vector<Sites> sites;                                                 // by context, where there is a trace
    std::exception_ptr error;
    host::Crash crash;
    std::string captured;
    uint64_t launches = 0;
    uint64_t stalled = 0;  // until then nothing of it runs
    bool dead = false, wanted = false;
  };

  static constexpr uint32_t few_looks = 16;  // that a thread makes in a row before it is taken to wait by them

  uint32_t check(uint32_t rank) const;

  // simulation.cpp: the loop
  host::Watchdog& prepare_os_thread();
  bool next();
  void take_turn(uint32_t task, uint32_t generation);
  void look_again(uint32_t task, uint32_t generation);
  bool postponed(uint32_t task);
  bool given_up();
  void progress();
  void record(uint32_t rank, const host::Thread& thread, const host::Note& note);
  void keep_site(uint32_t rank, const host::Note& note, const host::Call* call);
  bool only_looks(host::Thread& thread);

  // tasks.cpp
  uint32_t take_task(uint32_t rank);
  void free_task(uint32_t task);
  void make_ready(uint32_t task, uint64_t delay);
  void park(uint32_t task, bool begins);
  void park_loop(uint32_t task);
  void await_look(uint32_t task, uint64_t time);
  static bool waits_on(const Task& task);
  void unpark(uint32_t task);
  void wake(uint32_t rank);
  void wake_proxies(uint32_t rank);
  void wake_all();
  uint64_t turn_delay(uint32_t task);
  uint64_t wake_delay();
  void stall(uint32_t task);
  void step_proxy(uint32_t task);

  // kernels.cpp
  void begin_next(uint32_t rank);
  void begin(uint32_t rank, host::Launch launch);
  void start_blocks(uint32_t task);
  void step_thread(uint32_t task);
  void after_step(uint32_t task, host::Step step);
  void take_ready(Running& running);
  void restart_blocks(Running& running);
  void ended(Running& running, std::exception_ptr error);
  void forget(Running& running);
  std::unique_ptr<host::Scheduler> take_scheduler();

  const Options options_;
  Random random_, choice_;
  Agenda agenda_;
  Trace trace_;
  Network network_;
  std::vector<Rank> ranks_;
  std::vector<Task> tasks_;
  std::vector<uint32_t> free_tasks_;
  std::vector<std::unique_ptr<host::Scheduler>> spare_;
  std::vector<std::shared_ptr<const host::Module>> modules_;  // that the trace may name text of
  std::unique_ptr<host::SignalStack> signal_stack_;
  std::unique_ptr<host::Watchdog> watchdog_;

  host::Thread* thread_ = nullptr;  // who runs now
  uint32_t current_ = 0;            // its task
  uint32_t clock_reads_ = 0;
  uint64_t deadline_ = 0;                               // of the wait that it has begun
  bool posted_ = false, rang_ = false, turns_ = false;  // it has posted; given a proxy work; ended a gin operation
  // In its gin operation: it has read a signal; waited or reset one. It has done nothing but look for long.
  bool reads_ = false, acts_ = false, spins_ = false;
  host::Note read_{}, watch_{};  // what it has read last; what its wait watches
  int64_t found_ = stuck;        // a wanted rank without pending launches

  bool direct_ = options_.direct;
  uint64_t steps_ = 0, last_move_ = 0, progress_time_ = 0;
  uint64_t vain_looks_ = 0;            // since something has last moved
  uint64_t operations_before_ = 0;     // the gin operation that the thread is in
  std::vector<uint64_t> preemptions_;  // pct: steps to come, the next one last
  uint64_t low_ = 1ull << 32;          // pct: the next priority below all others
};

}  // namespace gin::sim
