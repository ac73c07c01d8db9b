// Shared memory without a name: sizes, sharing between processes, refusals, nothing left behind.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.h"
#include "error.h"
#include "memory/available.h"
#include "memory/host_id.h"
#include "memory/segment.h"

using namespace gin;
using memory::Segment;

namespace {

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// Runs `body` in a child process; returns its exit code.
template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

CASE(sizes) {
  for (uint64_t bytes : {0ull, 1ull, 4095ull, 4096ull, 4097ull, 3ull << 20}) {
    auto segment = Segment::create(bytes, "sizes");
    REQUIRE(segment->address() != nullptr);
    CHECK_EQ(segment->bytes(), bytes);
    auto again = Segment::open(segment->export_name());
    CHECK_EQ(again->bytes(), bytes);
    CHECK_EQ(again->name(), std::string("sizes"));
    CHECK(again->address() != segment->address());
    if (!bytes) continue;
    char* last = static_cast<char*>(segment->address()) + bytes - 1;
    CHECK_EQ(*last, '\0');
    *last = 42;
    CHECK_EQ(static_cast<char*>(again->address())[bytes - 1], 42);
  }
}

CASE(another_process_sees_it_and_is_seen) {
  auto segment = Segment::create(4096, "two words");
  volatile char* here = static_cast<char*>(segment->address());
  here[0] = 5;
  const std::string exported = segment->export_name();
  int code = in_child([&] {
    auto peer = Segment::open(exported);
    char* there = static_cast<char*>(peer->address());
    if (there[0] != 5) return 1;
    there[1] = 6;
    return 0;
  });
  CHECK_EQ(code, 0);
  CHECK_EQ(here[1], 6);
}

CASE(nothing_is_taken_until_it_is_touched) {
  const uint64_t half = memory::available().bytes / 2;
  auto one = Segment::create(half, "one");
  auto two = Segment::create(half, "two");
  static_cast<char*>(two->address())[half - 1] = 1;
  CHECK_EQ(static_cast<char*>(two->address())[half / 2], '\0');
}

CASE(more_than_there_is_is_refused) {
  for (uint64_t bytes : {uint64_t(1) << 62, ~uint64_t(0), memory::available().bytes * 2}) {
    const uint64_t before = Segment::live();
    CHECK_THROWS(Error, "available", Segment::create(bytes, "huge"));
    CHECK_THROWS(Error, std::to_string(bytes), Segment::create(bytes, "huge"));
    CHECK_EQ(Segment::live(), before);
  }
  try {
    Segment::create(1ull << 62, "huge");
  } catch (const Error& error) {
    CHECK(error.kind() == Error::Kind::memory);
  }
}

CASE(nothing_is_left) {
  const size_t before = open_descriptors();
  const uint64_t live = Segment::live();
  for (int i = 0; i < 50; ++i) {
    auto segment = Segment::create(1 << 16, "many");
    auto peer = Segment::open(segment->export_name());
    if (i % 2) segment->seal();
  }
  CHECK_EQ(open_descriptors(), before);
  CHECK_EQ(Segment::live(), live);
}

CASE(a_mapping_outlives_its_owner_and_its_descriptor) {
  auto segment = Segment::create(4096, "kept");
  auto peer = Segment::open(segment->export_name());
  static_cast<char*>(segment->address())[7] = 7;
  segment->seal();
  segment->seal();
  segment.reset();
  CHECK_EQ(static_cast<char*>(peer->address())[7], 7);
  CHECK_THROWS(Error, "cannot be exported", peer->export_name());
}

CASE(a_sealed_segment_cannot_be_opened) {
  auto segment = Segment::create(4096, "sealed");
  const std::string exported = segment->export_name();
  segment->seal();
  CHECK_THROWS(Error, "cannot be exported", segment->export_name());
  CHECK_THROWS(Error, "closed", Segment::open(exported));
  auto other = Segment::create(4096, "other");  // takes the same descriptor number
  CHECK_THROWS(Error, "something else", Segment::open(exported));
}

CASE(the_segment_of_a_killed_process_is_refused_and_gone) {
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  pid_t child = fork();
  if (child == 0) {
    auto segment = Segment::create(1 << 20, "killed");
    const std::string exported = segment->export_name();
    if (write(pipes[1], exported.data(), exported.size()) < 0) _exit(1);
    pause();
    _exit(0);
  }
  char buffer[512];
  const ssize_t got = read(pipes[0], buffer, sizeof(buffer));
  REQUIRE(got > 0);
  const std::string exported(buffer, size_t(got));
  auto peer = Segment::open(exported);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  static_cast<char*>(peer->address())[0] = 1;  // still mapped here
  CHECK_THROWS(Error, "has ended", Segment::open(exported));
  close(pipes[0]);
  close(pipes[1]);
}

CASE(names_that_are_none_are_refused) {
  CHECK_THROWS(Error, "does not name a segment", Segment::open(""));
  CHECK_THROWS(Error, "does not name a segment", Segment::open("gin-segment-0 1 2 3"));
  std::string exported = Segment::create(1, "x")->export_name();
  const std::string host = memory::host_id();
  exported.replace(exported.find(host), host.size(), "another-host");
  CHECK_THROWS(Error, "another host", Segment::open(exported));
}

CASE(another_user_is_told_so) {
  if (geteuid() != 0) return;  // only root can become somebody else
  auto segment = Segment::create(4096, "mine");
  const std::string exported = segment->export_name();
  int code = in_child([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 2;
    try {
      Segment::open(exported);
    } catch (const Error& error) {
      return std::string(error.what()).find("another user") != std::string::npos ? 0 : 3;
    }
    return 4;
  });
  CHECK_EQ(code, 0);
}

CASE(control_groups_limit_what_is_available) {
  char folder[] = "/tmp/gin-available-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::filesystem::path root = folder;
  write_file(root / "proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:   1000 kB\nSwapFree:  24 kB\n");
  CHECK_EQ(memory::available(folder).bytes, 1024ull * 1024);
  write_file(root / "proc/self/cgroup", "0::/job/step\n");
  write_file(root / "sys/fs/cgroup/job/memory.max", "500000\n");
  write_file(root / "sys/fs/cgroup/job/memory.current", "300000\n");
  write_file(root / "sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
  write_file(root / "sys/fs/cgroup/job/memory.swap.max", "0\n");
  write_file(root / "sys/fs/cgroup/job/step/memory.max", "max\n");
  write_file(root / "sys/fs/cgroup/job/step/memory.current", "300000\n");
  CHECK_EQ(memory::available(folder).bytes, 300000ull);
  CHECK_CONTAINS(memory::available(folder).limit, "/job");
  write_file(root / "proc/self/cgroup", "4:cpu,memory:/old\n0::/\n");
  write_file(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "200000\n");
  write_file(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", "250000\n");
  write_file(root / "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 60000\n");
  CHECK_EQ(memory::available(folder).bytes, 10000ull);
  std::filesystem::remove_all(root);
}

CASE(start_times_tell_processes_apart) {
  CHECK(memory::start_time(getpid()) > 0);
  CHECK_EQ(memory::start_time(pid_t(0x7ffffff0)), 0ull);
}

CHECK_MAIN
