// Ranks that drive the RMA plugin as NCCL does: each a thread, or a process of its own, with a table loaded by name.
#pragma once

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "nccl_plugin/abi.h"
#include "nccl_plugin/settings.h"

namespace plugin {

using namespace gin::rma;

inline std::mutex& log_mutex() {
  static std::mutex mutex;
  return mutex;
}
inline std::string& log() {
  static std::string text;
  return text;
}

inline void logger(int level, unsigned long, const char*, int, const char* format, ...) {
  char line[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  std::lock_guard<std::mutex> held(log_mutex());
  if (level <= abi::log_warning) log() += std::string(line) + "\n";
}

inline std::string logged() {
  std::lock_guard<std::mutex> held(log_mutex());
  return log();
}

template <class T>
const T& table(const char* name) {
  static void* library = dlopen(GIN_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return *static_cast<const T*>(found);
}
inline const abi::Table14& table14() { return table<abi::Table14>("ncclRmaPlugin_v14"); }

// What the ranks of one communicator share: handles, and a count for barriers. In shared memory for processes.
struct Meeting {
  static constexpr int most = 8;
  char handles[most][abi::handle_bytes];
  std::atomic<int> listening, arrived, failed;
};

class Rank {
 public:
  Rank(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {
    table14().init(&instance_, 7, logger);
    ok_ = table14().listen(instance_, 0, meeting.handles[rank], &listener_) == 0;
    meeting.listening.fetch_add(1);
  }
  ~Rank() { close(); }

  bool connect(int contexts = 1) {
    while (meeting_.listening.load() < size_) sched_yield();
    std::vector<void*> handles;
    for (int i = 0; i < size_; ++i) handles.push_back(meeting_.handles[i]);
    result_ = table14().connect(instance_, handles.data(), size_, rank_, listener_, &comm_);
    if (result_) return false;
    abi::Config14 config{contexts, -1};
    result_ = table14().create_context(comm_, &config, &context_);
    return result_ == 0;
  }

  void close() {
    if (context_) table14().destroy_context(context_);
    if (comm_) table14().close_comm(comm_);
    if (listener_) table14().close_listener(listener_);
    context_ = comm_ = listener_ = nullptr;
  }

  void* add(void* data, size_t bytes, int type = abi::pointer_host, uint64_t flags = 0) {
    void* region = nullptr;
    result_ = table14().reg(comm_, data, bytes, type, flags, &region);
    return result_ ? nullptr : region;
  }

  void progress() { table14().progress(context_); }

  // Until the request is done; returns NCCL's result, -1 past some seconds.
  int wait(void* request, double limit = 20) {
    const Deadline deadline(limit);
    for (int done = 0;;) {
      const int result = table14().test(comm_, request, &done);
      if (result || done) return result;
      progress();
      sched_yield();
      if (deadline.passed()) return -1;
    }
  }

  bool wait_word(const uint64_t& word, uint64_t least, double limit = 20) {
    const Deadline deadline(limit);
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) < least) {
      progress();
      sched_yield();
      if (deadline.passed()) return false;
    }
    return true;
  }

  // All ranks go on driving the plugin until all are here.
  bool barrier() {
    const int goal = (++barriers_) * size_;
    meeting_.arrived.fetch_add(1);
    const Deadline deadline(30);
    while (meeting_.arrived.load() < goal) {
      if (context_) progress();
      sched_yield();
      if (deadline.passed()) return false;
    }
    return true;
  }

  int put(void* source, size_t from, size_t bytes, void* target, size_t to, int peer, void** request, int index = 0) {
    return table14().put(context_, index, from, source, bytes, to, target, uint32_t(peer), request);
  }
  int put_signal(void* source, size_t from, size_t bytes, void* target, size_t to, int peer, void* signal, size_t at,
                 uint64_t add, void** request, bool strong = true, int index = 0) {
    return table14().put_signal(context_, index, from, source, bytes, to, target, uint32_t(peer), at, signal, add,
                                abi::signal_add, strong, request);
  }
  int get(void* remote, size_t from, size_t bytes, void* local, size_t to, int peer, void** request, int index = 0) {
    return table14().get(context_, index, from, remote, bytes, to, local, uint32_t(peer), request);
  }
  bool failed() {
    bool is = false;
    table14().last_error(context_, &is);
    return is;
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int result() const { return result_; }
  void* comm() { return comm_; }
  void* context() { return context_; }
  void** context_slot() { return &context_; }

 private:
  Meeting& meeting_;
  int rank_, size_, barriers_ = 0, result_ = 0;
  bool ok_ = false;
  void *instance_ = nullptr, *listener_ = nullptr, *comm_ = nullptr, *context_ = nullptr;
};

// Called in each rank's thread first.
inline void (*before_connect)(int rank) = nullptr;

// Whether what the body does fails.
inline bool fails = false;

// Runs `body(rank)` in a thread per rank, connected.
template <class Body>
void with_ranks(int size, Body body, int contexts = 1) {
  Meeting meeting{};
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i)
    threads.emplace_back([&, i] {
      if (before_connect) before_connect(i);
      Rank rank(meeting, i, size);
      const bool connected = rank.connect(contexts);
      CHECK(connected);
      if (!connected) std::fprintf(stderr, "%s", logged().c_str());
      if (!connected) return;
      body(rank);
      CHECK(rank.barrier());
      CHECK_EQ(rank.failed(), fails);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace plugin
