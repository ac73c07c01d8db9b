// Runs a launch: every thread a fiber, all in the calling OS thread.
//
// Threads run until they block or poll. A started block is started whole before anything else; a new block is started
// when every thread that runs only polls, or none is left, so kernels that do not synchronise use one stack. Threads that
// wait at a barrier or in a warp operation are not in the run queue, and an empty queue with unfinished threads is a
// deadlock, which ends the launch with a report of where they stand.
//
// A stepped scheduler leaves all choices to its caller: which thread runs until it next polls, passes or blocks, and when
// the next block is started.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "arena.h"
#include "launch.h"
#include "switch.h"

namespace gin::host {

class Scheduler;

// Time, waiting, and requests from outside. Called on fibers: nothing here may throw.
class Hooks {
 public:
  virtual ~Hooks() = default;
  virtual uint64_t now_ns() = 0;
  virtual uint64_t cycles() = 0;
  // Every thread polled in vain, for the (round + 1)-th time since one of them began to wait. True leaves resume().
  virtual bool idle(uint32_t round) = 0;
  // Every thread had its turn, and some of them may have been getting on: spinning on atomics, for what one can tell.
  virtual void pass(uint32_t round) = 0;
  // After Scheduler::interrupt. True stops the launch.
  virtual bool interrupted(Scheduler& scheduler) = 0;
  // What a kernel compiled for the simulator tells; a stepped scheduler's only. True ends the thread's step.
  virtual bool note(Thread*, const Note&) { return false; }
};

// How a thread's step has ended.
enum class Step : uint8_t {
  polled,   // a wait looked in vain; it can run again
  passed,   // it gave others their turn; it can run again
  blocked,  // at a barrier or in a warp operation
  ended,
};

// What a thread of a stepped launch was ended for, and where: `offset` in the module's file, as addr2line takes it.
struct Crash {
  enum class Kind : uint8_t { none, fault, spin } kind = Kind::none;
  static constexpr Kind fault = Kind::fault, spin = Kind::spin;
  std::shared_ptr<const Module> module;
  uint64_t offset = 0;
};

// Threads of one warp that wait for the same mask.
struct WarpGroup {
  uint32_t mask, arrived;
};

struct Warp {
  Thread* lanes[warp_size];
  uint32_t gone;  // lanes that have ended or that the block does not have
  uint32_t groups;
  WarpGroup group[warp_size];
};

struct BlockState : Block {
  uint32_t threads, started, ended;
  uint32_t waiting;  // at the barrier
  uint32_t sum;      // of what they brought
  uint32_t result;   // of the last complete barrier
  bool mixed;        // they wait at different barriers
  Thread *first, *last;
  Index3 cursor;  // of the thread to be started next
  char* image;    // shared memory, nullptr when the launch has none
  size_t position;
  uint64_t stalled;  // for the caller of a stepped scheduler; 0 at first
  uint32_t warp_count;
  std::unique_ptr<Warp[]> warps;
};

class Scheduler {
 public:
  // At most `max_threads` are resident at once (0: as many as there are stacks).
  explicit Scheduler(Hooks& hooks, uint32_t max_threads = 0, bool stepped = false);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // `launch` outlives its run. One launch at a time.
  void start(const Launch& launch);
  // Runs until the launch has ended (true) or Hooks::idle wants the OS thread (false). An error ends the launch; the
  // scheduler can then start the next.
  bool resume();
  // Ends the launch where it is. Not from within resume().
  void stop();

  // -- stepped: instead of resume(). An error ends the launch and is thrown.

  // Whether there is a block to start, and room for it.
  bool can_start_block() const { return startable(); }
  // Starts the next block; its threads are ready.
  void begin_block();
  // The next of the threads that have become able to run since they were asked for; nullptr for none.
  Thread* take_ready();
  // Runs a thread that is able to.
  Step step(Thread* t);
  // Ends the launch with an error: no thread is able to run.
  [[noreturn]] void deadlock();
  // Forgets the launch when all its blocks have ended; whether they have.
  bool finished();
  // From a handler of signals with its third argument, on the OS thread that runs: has the running thread end the launch with
  // an error when the handler returns. False where that cannot be: the scheduler is not stepped, or what was interrupted is
  // not the kernel's own code.
  bool abandon(void* context, Crash::Kind kind, const char* why);
  // Of the last launch, unless it ended otherwise.
  const Crash& crash() const { return crash_; }
  // A number of the thread below `threads_made()`, its own as long as it lives.
  uint32_t number(const Thread* t) const { return arena_.slot(t); }
  uint32_t threads_made() const { return arena_.used(); }

  // Has Hooks::interrupted called at the next poll or barrier. From any thread.
  void interrupt() { interrupted_.store(true, std::memory_order_relaxed); }

  // Where the threads of the launch stand. From the OS thread that runs it: from Hooks or between calls to resume().
  std::string report() const;
  // The first report that the kernel asked for (gin::host::capture), or nothing.
  const std::string& captured() const { return captured_; }

  // For the handler of faults: who was running, and whether the address is below the end of a thread's stack.
  const Arena& arena() const { return arena_; }
  const Thread* current() const { return current_; }
  bool stepped() const { return stepped_; }
  const char* kernel_name() const { return launch_ ? launch_->name.c_str() : ""; }

 private:
  static const Services services_, stepped_services_;
  static Scheduler& of(Thread* t) { return *static_cast<Scheduler*>(t->scheduler); }

  // what kernels call
  void turn(Thread* t, bool polls);
  uint32_t barrier(Thread* t, BarrierOp op, uint32_t value);
  uint64_t warp(Thread* t, WarpOp op, uint32_t mask, uint64_t value, uint32_t source);
  void fail(const Thread* t, const std::string& what);
  void give_turn(Thread* t, Step step);
  static void end_abandoned(Thread* t);
  [[noreturn]] void throw_failure();

  // warps
  void complete(Warp& warp, uint32_t group, const Thread* running);
  void lane_ended(Warp& warp, uint32_t lane);

  // blocks and threads
  bool startable() const { return next_block_ < blocks_ && resident_threads_ + threads_per_block_ <= capacity_; }
  void start_block() noexcept;
  void end_block(BlockState& block);
  char* take_image();
  void drop_images();
  uint64_t find_dynamic();
  Thread* start_thread();
  Thread* take_stack();
  void prepare_stack(Thread* t, void (*entry)(void*));
  void assign(Thread* t);
  void run_fiber(Thread* t);
  void finish(Thread* t);

  // switching
  void push(Thread* t);
  void append(Thread* first, Thread* last, uint32_t count);
  Thread* pop();
  Thread* next() noexcept;
  void suspend(Thread* t);
  void transfer(Thread* from, Thread* to);
  void leave(Thread* from);
  void enter(Thread* to);
  bool must_stop();
  Shadow& shadow(const Thread* t) { return shadows_[arena_.slot(t)]; }

  void reset();
  std::string place(const Thread* t) const;
  std::string block_report(const BlockState& block, const std::set<const Thread*>& runnable) const;

  Hooks& hooks_;
  Arena arena_;
  uint32_t capacity_;
  const bool stepped_;
  Step step_ = Step::passed;
  std::vector<uint8_t> ready_;  // stepped: by slot, whether the thread is able to run
  std::atomic<bool> interrupted_{false};

  // the launch
  const Launch* launch_ = nullptr;
  void (*call_)(void* const*) = nullptr;
  void* const* arguments_ = nullptr;
  uint64_t blocks_ = 0, next_block_ = 0, ended_blocks_ = 0;
  Index3 next_index_{};
  uint32_t threads_per_block_ = 0;
  std::string captured_;

  // what is resident
  std::vector<std::unique_ptr<BlockState>> resident_, spare_;
  uint32_t resident_threads_ = 0;
  BlockState* partial_ = nullptr;  // the block whose threads are being started

  // the run queue, and the threads in a row that had their turn without getting on
  Thread *head_ = nullptr, *tail_ = nullptr;
  uint32_t queued_ = 0, streak_ = 0, round_ = 0, passes_ = 0;
  bool passed_ = false;

  // contexts
  Thread* current_ = nullptr;
  Thread* free_ = nullptr;
  void* main_stack_ = nullptr;
  std::vector<Shadow> shadows_;
  Shadow main_shadow_;
  Shadow* previous_ = nullptr;

  // how it ended
  bool stopped_ = false;
  std::string failure_;
  char abandoned_for_[256];
  Crash crash_;
  std::exception_ptr error_;

  // shared memory
  uint64_t image_bytes_ = 0;     // address space of one block's image, 0 when the launch has no shared memory
  uint64_t dynamic_offset_ = 0;  // of dynamic shared memory in it
  uintptr_t found_ = 0;
  std::vector<char*> images_;
};

}  // namespace gin::host
