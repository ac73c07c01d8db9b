#include "watchdog.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>

#include "fault.h"
#include "scheduler.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace gin::host {

namespace {

constexpr int tick = SIGURG;
constexpr uint64_t second_ns = 1'000'000'000;
constexpr uint64_t longest_period_ns = second_ns / 10, hurried_period_ns = second_ns / 1000;
constexpr uint64_t before_request_ns = second_ns;   // that a turn may last once the process is asked to end
constexpr uint64_t last_chance_ns = 5 * second_ns;  // for a thread that cannot be ended where it is

// Signal handlers belong to the process and find their thread's data in thread-local storage.
thread_local Watchdog* watching = nullptr;
volatile sig_atomic_t asked_to_end = 0;
struct sigaction asked_before[NSIG];

uint64_t processor_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return uint64_t(now.tv_sec) * second_ns + uint64_t(now.tv_nsec);
}

void on_tick(int, siginfo_t*, void* context) {
  if (watching) watching->look(context);
}

void on_request(int number, siginfo_t* info, void* context) {
  asked_to_end = 1;
  const struct sigaction& before = asked_before[number];
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else {
    before.sa_handler(number);
  }
}

bool handles(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(tick, &action, nullptr);
}

}  // namespace

// Whoever handles requests to end, as Python does, notes them and looks later. That there is one is to be seen here.
void Requests::begin() {
  for (size_t i = 0; i < std::size(numbers); ++i) {
    struct sigaction now{};
    sigaction(numbers[i], nullptr, &now);
    taken_[i] = handles(now) && now.sa_sigaction != on_request;
    if (!taken_[i]) continue;
    asked_before[numbers[i]] = now;
    now.sa_sigaction = on_request;
    now.sa_flags |= SA_SIGINFO | SA_ONSTACK;
    sigaction(numbers[i], &now, nullptr);
  }
}

void Requests::end() {
  for (size_t i = 0; i < std::size(numbers); ++i) {
    struct sigaction now{};
    if (taken_[i] && sigaction(numbers[i], nullptr, &now) == 0 && now.sa_sigaction == on_request)
      sigaction(numbers[i], &asked_before[numbers[i]], nullptr);
  }
}

Watchdog::Watchdog(uint64_t limit_ms)
    : limit_ns_(limit_ms * 1'000'000),
      period_ns_(limit_ms ? std::clamp(limit_ns_ / 4, hurried_period_ns, longest_period_ns) : longest_period_ns),
      thread_(gettid()) {
  static std::once_flag once;
  std::call_once(once, install);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = tick;
  event.sigev_notify_thread_id = thread_;
  works_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
}

Watchdog::~Watchdog() {
  if (works_) timer_delete(timer_);
}

bool Watchdog::is_mine() const { return thread_ == gettid(); }

void Watchdog::set_period(uint64_t ns) {
  if (!works_) return;
  const timespec period{time_t(ns / second_ns), long(ns % second_ns)};
  const itimerspec times{period, period};
  timer_settime(timer_, 0, &times, nullptr);
}

Watchdog::Watch::Watch(Watchdog& dog) : dog_(dog), outer_(watching) {
  watching = &dog;
  asked_to_end = 0;
  dog.turn_ = 0;
  dog.hurries_ = false;
  dog.requests_.begin();
  dog.set_period(dog.period_ns_);
}

Watchdog::Watch::~Watch() {
  dog_.set_period(0);
  dog_.requests_.end();
  watching = outer_;
}

void Watchdog::look(void* context) {
  Scheduler* scheduler = FaultScope::scheduler();
  const uint64_t turn = FaultScope::count(), now = processor_ns();
  if (!scheduler || !scheduler->current() || turn != turn_) {
    if (hurries_) set_period(period_ns_);
    hurries_ = false;
    turn_ = turn;
    since_ = now;
    return;
  }
  uint64_t limit = limit_ns_ ? limit_ns_ : UINT64_MAX / 2;
  if (asked_to_end) limit = std::min(limit, before_request_ns);
  const uint64_t lasted = now - since_;
  if (lasted < limit) return;
  char text[128];
  std::snprintf(text, sizeof text, "has not given way to other threads for %.3g s of processor time%s",
                double(lasted) / second_ns, asked_to_end ? ", and the process is to end" : "");
  if (scheduler->abandon(context, Crash::spin, text)) return;
  if (!hurries_) set_period(hurried_period_ns);
  hurries_ = true;
  if (lasted < limit + last_chance_ns) return;
  write_last_words(*scheduler, text);
  abort();
}

}  // namespace gin::host
