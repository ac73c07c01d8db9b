#include "stream.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "../error.h"
#include "fault.h"
#include "scheduler.h"

namespace gin::host {

namespace {

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

inline uint64_t processor_cycles() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  uint64_t count;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#endif
}

// Faults must be delivered where they happen; every other signal is for threads that run no fibers.
void block_signals() {
  sigset_t set;
  sigfillset(&set);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&set, fault);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

struct Stream::State final : Hooks {
  explicit State(const StreamOptions& o) : options(o) {}

  StreamOptions options;
  std::thread thread;

  mutable std::mutex mutex;
  std::condition_variable work, progress;
  std::deque<Launch> queue;
  std::string running;  // name of the running kernel
  bool busy = false, closing = false, abandoned = false;
  uint64_t reports_wanted = 0, reports_done = 0;
  std::string report, capture;
  std::exception_ptr error;
  Scheduler* scheduler = nullptr;

  // ---- Hooks, on the stream's thread

  uint64_t now_ns() override { return monotonic_ns(); }
  uint64_t cycles() override { return processor_cycles(); }

  bool idle(uint32_t round) override {
    const Backoff& b = options.backoff;
    if (round < b.spins) {
      pause_processor();
    } else if (round - b.spins < b.yields || !b.sleep_ns) {
      sched_yield();
    } else {
      uint32_t steps = round - b.spins - b.yields;
      uint64_t ns = steps < 16 ? uint64_t(1000) << steps : b.sleep_ns;
      if (ns > b.sleep_ns) ns = b.sleep_ns;
      timespec t{time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
      nanosleep(&t, nullptr);
    }
    return false;
  }

  void pass(uint32_t round) override {
    // Atomics may be real work, which a sched_yield now and then does not slow down.
    if (round % 64 == 63) sched_yield();
  }

  bool interrupted(Scheduler& s) override {
    std::lock_guard lock(mutex);
    if (reports_done < reports_wanted) {
      report = s.report();
      reports_done = reports_wanted;
      progress.notify_all();
    }
    return abandoned;
  }

  // ---- the thread

  void loop() {
    SignalStack signal_stack;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    std::optional<Scheduler> owned;
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return closing || !queue.empty(); });
      if (queue.empty()) break;
      std::exception_ptr failed;
      std::deque<Launch> dropped;
      {
        Launch launch = std::move(queue.front());
        queue.pop_front();
        busy = true;
        running = launch.name;
        lock.unlock();
        failed = run(owned, launch);
      }  // the module may be unloaded here, and whoever has that to do may hold up a caller who wants the lock
      lock.lock();
      if (failed && !error) {
        error = failed;
        dropped.swap(queue);
      }
      if (owned && !owned->captured().empty()) capture = owned->captured();
      busy = abandoned = false;
      reports_done = reports_wanted;
      report = "no kernel is running";
      progress.notify_all();
      if (!dropped.empty()) {
        lock.unlock();
        dropped.clear();
        lock.lock();
      }
    }
    scheduler = nullptr;
  }

  std::exception_ptr run(std::optional<Scheduler>& owned, const Launch& launch) {
    try {
      if (!owned) {
        owned.emplace(*this, options.max_threads);
        std::lock_guard lock(mutex);
        scheduler = &*owned;
      }
      owned->start(launch);
      bool stop;
      {
        std::lock_guard lock(mutex);
        stop = abandoned;
      }
      if (stop) owned->interrupt();
      while (!owned->resume()) {
      }
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  bool idle_locked() const { return queue.empty() && !busy; }
};

Stream::Stream(const StreamOptions& options) : state_(std::make_shared<State>(options)) {}

Stream::~Stream() { close(); }

void Stream::close() {
  State& s = *state_;
  abandon();
  std::unique_lock lock(s.mutex);
  s.closing = true;
  if (!s.thread.joinable()) return;
  s.work.notify_all();
  s.progress.wait_for(lock, std::chrono::seconds(1), [&] { return s.idle_locked(); });
  if (!s.idle_locked()) {
    std::fprintf(stderr, "gin: kernel %s does not poll and cannot be stopped; its thread is left behind\n",
                 s.running.c_str());
    s.thread.detach();
    return;  // the thread holds the state, and the module, for as long as it runs
  }
  s.error = nullptr;  // its own, from abandoning
  lock.unlock();
  s.thread.join();
}

void Stream::launch(Launch launch) {
  launch.check();
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  if (s.closing) throw Error(Error::Kind::config, "launch of kernel " + launch.name + ": the stream is closed");
  if (s.error) return;
  if (!s.thread.joinable()) {
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    block_signals();  // inherited by the thread from its first instruction on
    try {
      s.thread = std::thread([state = state_] { state->loop(); });
    } catch (const std::system_error& e) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(Error::Kind::memory, std::string("host platform: cannot start the thread of a stream: ") + e.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  s.queue.push_back(std::move(launch));
  s.work.notify_one();
}

bool Stream::synchronize(std::chrono::nanoseconds timeout) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (!s.progress.wait_for(lock, timeout, [&] { return s.idle_locked(); })) return false;
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
  return true;
}

void Stream::abandon() {
  State& s = *state_;
  std::deque<Launch> dropped;  // modules are let go of without the lock
  std::lock_guard lock(s.mutex);
  dropped.swap(s.queue);
  if (!s.busy) return;
  s.abandoned = true;
  if (s.scheduler) s.scheduler->interrupt();
}

std::string Stream::where(std::chrono::nanoseconds timeout) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (!s.busy) return "no kernel is running";
  uint64_t mine = ++s.reports_wanted;
  if (s.scheduler) s.scheduler->interrupt();
  if (s.progress.wait_for(lock, timeout, [&] { return s.reports_done >= mine; })) return s.report;
  return "kernel " + s.running + " is running code that neither polls nor synchronises";
}

std::string Stream::captured() const {
  std::lock_guard lock(state_->mutex);
  return state_->capture;
}

uint64_t Stream::pending() const {
  std::lock_guard lock(state_->mutex);
  return state_->queue.size() + (state_->busy ? 1 : 0);
}

}  // namespace gin::host
