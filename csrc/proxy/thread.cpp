#include "proxy/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstring>
#include <system_error>

#include "error.h"

namespace gin::proxy {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin(std::thread& thread, int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= CPU_SETSIZE) throw Error(Error::Kind::config, "proxy cpu " + std::to_string(cpu) + " does not exist");
  CPU_SET(cpu, &set);
  int error = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  if (error)
    throw Error(Error::Kind::config, "the progress thread cannot run on cpu " + std::to_string(cpu) + ": " +
                                         std::strerror(error) + "; choose one that this process may use (taskset -p)");
}

// A thread that leaves every signal to the program's own threads.
template <class Body>
std::thread start_without_signals(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(body);
  } catch (const std::system_error& e) {
    error = e.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error)
    throw Error(Error::Kind::memory, std::string("cannot start a progress thread: ") + std::strerror(error) +
                                         "; the limit on threads (ulimit -u, pids.max) may be too low");
  return thread;
}

}  // namespace

ProgressThread::ProgressThread(Engine& engine, Failures& failures, const ThreadOptions& options)
    : engine_(engine), failures_(failures), options_(options) {
  thread_ = start_without_signals([this] { run(); });
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
  try {
    if (options_.cpu >= 0) pin(thread_, options_.cpu);
  } catch (...) {
    request_stop({});
    join();
    throw;
  }
}

ProgressThread::~ProgressThread() {
  request_stop({});
  join();
}

void ProgressThread::request_stop(std::chrono::steady_clock::time_point deadline) {
  deadline_ns_.store(std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count(),
                     std::memory_order_relaxed);
  stopping_.store(true, std::memory_order_release);
}

bool ProgressThread::join() {
  if (thread_.joinable()) thread_.join();
  return drained_;
}

std::vector<int> ProgressThread::affinity() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (thread_.joinable() && pthread_getaffinity_np(thread_.native_handle(), sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void ProgressThread::run() {
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // nanoseconds: sleep as long as asked, not 50 us more
  drained_ = false;
  try {
    step_until_told();
    drained_ = engine_.idle();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of unknown type");
  }
}

void ProgressThread::step_until_told() {
  uint32_t idle_steps = 0;
  while (true) {
    if (engine_.step_often()) {
      idle_steps = 0;
      if (!stopping_.load(std::memory_order_relaxed)) continue;
    }
    if (stopping_.load(std::memory_order_acquire) && may_end()) break;
    rest(++idle_steps);
  }
}

void ProgressThread::fail(const char* why) {
  std::fprintf(stderr, "gin: %s ends: %s\n", options_.name.c_str(), why);
  failures_.record({Code::internal});
}

void ProgressThread::rest(uint32_t idle_steps) {
  if (idle_steps <= options_.spin) {
    relax();
  } else if (idle_steps - options_.spin <= options_.yield) {
    sched_yield();
  } else {
    timespec pause{0, long(options_.sleep_us) * 1000};
    nanosleep(&pause, nullptr);
  }
}

bool ProgressThread::may_end() const {
  if (engine_.idle()) return true;
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() >=
         deadline_ns_.load(std::memory_order_relaxed);
}

}  // namespace gin::proxy
