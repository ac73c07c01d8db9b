// The RMA plugin between processes: peers that die, leave, stand still or never come, and strangers.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>

#include "nccl_plugin/mesh.h"
#include "plugin_ranks.h"

using namespace plugin;

namespace {

Meeting* shared_meeting() {
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Meeting{};
}

// Rank 1 of two in a process of its own.
template <class Body>
pid_t other_process(Meeting& meeting, Body body) {
  const pid_t child = fork();
  if (child) return child;
  {
    Rank rank(meeting, 1, 2);
    if (!rank.connect()) _exit(3);
    body(rank);
  }
  _exit(0);
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

struct Window {
  Window() : bytes(8 << 20) {}
  std::vector<uint8_t> bytes;
};

}  // namespace

CASE(processes_exchange_data) {
  Meeting& meeting = *shared_meeting();
  auto both = [](Rank& r) {
    Window source, target;
    uint64_t word = 0;
    std::fill(source.bytes.begin(), source.bytes.end(), uint8_t(10 + r.rank()));
    void* from = r.add(source.bytes.data(), source.bytes.size());
    void* to = r.add(target.bytes.data(), target.bytes.size());
    void* signal = r.add(&word, 8);
    void* request = nullptr;
    bool good = r.put_signal(from, 0, source.bytes.size(), to, 0, 1 - r.rank(), signal, 0, 1, &request) == 0;
    good = good && r.wait(request) == 0 && r.wait_word(word, 1);
    for (uint8_t byte : target.bytes) good = good && byte == 11 - r.rank();
    return r.barrier() && good;
  };
  const pid_t child = other_process(meeting, [&](Rank& r) {
    if (!both(r)) _exit(4);
  });
  Rank r(meeting, 0, 2);
  REQUIRE(r.connect());
  CHECK(both(r));
  CHECK_EQ(status_of(child), 0);
}

CASE(a_dead_peer_ends_what_waits_for_it) {
  Meeting& meeting = *shared_meeting();
  const pid_t child = other_process(meeting, [](Rank& r) {
    Window window;
    if (r.add(window.bytes.data(), window.bytes.size())) pause();
  });
  log().clear();
  Rank r(meeting, 0, 2);
  REQUIRE(r.connect());
  Window window;
  void* region = r.add(window.bytes.data(), window.bytes.size());
  REQUIRE(region);
  void* request = nullptr;
  CHECK_EQ(r.put(region, 0, window.bytes.size(), region, 0, 1, &request), 0);
  for (int i = 0; i < 1000; ++i) r.progress();
  CHECK(!r.failed());
  kill(child, SIGKILL);
  const double began = now();
  CHECK_EQ(r.wait(request), int(abi::remote_error));
  CHECK(now() - began < 2);
  CHECK(r.failed());
  CHECK_CONTAINS(logged(), "rank 1 has ended");
  CHECK_EQ(r.put(region, 0, 8, region, 0, 1, &request), int(abi::remote_error));
  CHECK_EQ(r.put(region, 0, 8, region, 8, 0, &request), 0);  // others go on
  CHECK_EQ(r.wait(request), 0);
  CHECK(!r.add(window.bytes.data(), 8));
  CHECK_EQ(r.result(), int(abi::remote_error));
  r.close();
  CHECK(now() - began < 3);
  status_of(child);
}

CASE(a_peer_that_leaves_is_no_error) {
  Meeting& meeting = *shared_meeting();
  const pid_t child = other_process(meeting, [](Rank& r) { r.barrier(); });
  Rank r(meeting, 0, 2);
  REQUIRE(r.connect());
  CHECK(r.barrier());
  CHECK_EQ(status_of(child), 0);
  const Deadline deadline(0.1);
  while (!deadline.passed()) r.progress();
  CHECK(!r.failed());
  uint64_t word = 0;
  CHECK(!r.add(&word, 8));
  CHECK_EQ(r.result(), int(abi::remote_error));
}

CASE(a_peer_that_stands_still_is_given_up) {
  setenv("GIN_TIMEOUT", "400ms", 1);
  Meeting& meeting = *shared_meeting();
  const pid_t child = other_process(meeting, [](Rank& r) {
    Window window;
    if (r.add(window.bytes.data(), window.bytes.size())) pause();
  });
  log().clear();
  Rank r(meeting, 0, 2);
  REQUIRE(r.connect());
  Window window;
  void* region = r.add(window.bytes.data(), window.bytes.size());
  REQUIRE(region);
  void *get = nullptr, *put = nullptr;
  CHECK_EQ(r.get(region, 0, 8, region, 8, 1, &get), 0);
  CHECK_EQ(r.wait(get, 5), int(abi::remote_error));
  CHECK_EQ(r.put(region, 0, window.bytes.size(), region, 0, 1, &put), int(abi::remote_error));
  CHECK_CONTAINS(logged(), "GIN_TIMEOUT");
  kill(child, SIGKILL);
  status_of(child);
  unsetenv("GIN_TIMEOUT");
}

CASE(a_rank_that_never_comes) {
  setenv("GIN_CONNECT_TIMEOUT", "0.3s", 1);
  Meeting& meeting = *shared_meeting();
  log().clear();
  {
    Rank r(meeting, 0, 2);
    Rank second(meeting, 1, 2);  // listens only
    const double began = now();
    CHECK(!r.connect());
    CHECK_EQ(r.result(), int(abi::remote_error));
    CHECK(now() - began < 2);
  }
  CHECK_CONTAINS(logged(), "have not connected within");
  CHECK_CONTAINS(logged(), ": 1;");
  unsetenv("GIN_CONNECT_TIMEOUT");
}

CASE(a_step_that_a_rank_does_not_take) {
  setenv("GIN_CONNECT_TIMEOUT", "0.3", 1);
  Meeting& meeting = *shared_meeting();
  const pid_t child = other_process(meeting, [](Rank&) { pause(); });
  log().clear();
  Rank r(meeting, 0, 2);
  REQUIRE(r.connect());
  uint64_t word = 0;
  CHECK(!r.add(&word, 8));
  CHECK_EQ(r.result(), int(abi::remote_error));
  CHECK_CONTAINS(logged(), "rank 1 has not come within");
  kill(child, SIGKILL);
  status_of(child);
  unsetenv("GIN_CONNECT_TIMEOUT");
}

// Somebody who finds the socket but does not know the secret is not taken for a rank.
CASE(strangers_are_not_ranks) {
  Meeting& meeting = *shared_meeting();
  Rank r(meeting, 0, 2);
  Handle handle;
  std::memcpy(&handle, meeting.handles[0], sizeof(handle));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  char* out = address.sun_path + 1;
  out += std::sprintf(out, "gin-rma-");
  for (uint8_t byte : handle.name) out += std::sprintf(out, "%02x", byte);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  const socklen_t bytes = socklen_t(offsetof(sockaddr_un, sun_path) + size_t(out - address.sun_path));
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  char hello[36] = {1};  // rank 1, a secret of zeros
  CHECK_EQ(send(fd, hello, sizeof(hello), 0), ssize_t(sizeof(hello)));
  const pid_t child = other_process(meeting, [](Rank& other) { other.barrier(); });
  CHECK(r.connect());
  CHECK_EQ(recv(fd, hello, sizeof(hello), 0), 0);  // dropped
  CHECK(r.barrier());
  close(fd);
  CHECK_EQ(status_of(child), 0);
}

CASE(another_host_is_refused) {
  Meeting& meeting = *shared_meeting();
  log().clear();
  Rank r(meeting, 0, 2), second(meeting, 1, 2);
  Handle handle;
  std::memcpy(&handle, meeting.handles[1], sizeof(handle));
  handle.host ^= 1;
  std::memcpy(meeting.handles[1], &handle, sizeof(handle));
  CHECK(!r.connect());
  CHECK_EQ(r.result(), int(abi::invalid_usage));
  CHECK_CONTAINS(logged(), "rank 1 is on another host");
}

CASE(durations) {
  CHECK_EQ(seconds("500ms", 1), 0.5);
  CHECK_EQ(seconds("2 min", 1), 120);
  CHECK_EQ(seconds("7", 1), 7);
  CHECK_EQ(seconds("never", 1), 0);
  CHECK_EQ(seconds("soon", 1), 1);
  CHECK_EQ(seconds("-3", 1), 1);
  CHECK_EQ(seconds(nullptr, 4), 4);
}

// What gin hands over is the job's; without it the variables of gin count.
CASE(deadlines_come_from_the_job) {
  const auto found = [] {
    const Settings settings = Settings::from_environment();
    return std::pair(settings.timeout, settings.connect_timeout);
  };
  std::vector<std::pair<std::string, std::string>> before;
  const char* names[] = {"GIN_TIMEOUT", "GIN_CONNECT_TIMEOUT", "NCCL_RMA_GIN_TIMEOUT", "NCCL_RMA_GIN_CONNECT_TIMEOUT"};
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) before.emplace_back(name, value);
    unsetenv(name);
  }
  CHECK(found() == std::pair(30.0, 60.0));
  setenv("GIN_TIMEOUT", "2min", 1);
  setenv("GIN_CONNECT_TIMEOUT", "5s", 1);
  CHECK(found() == std::pair(120.0, 5.0));
  setenv("NCCL_RMA_GIN_TIMEOUT", "never", 1);
  setenv("NCCL_RMA_GIN_CONNECT_TIMEOUT", "0.25s", 1);
  CHECK(found() == std::pair(0.0, 0.25));
  for (const char* name : names) unsetenv(name);
  for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
}

CHECK_MAIN
