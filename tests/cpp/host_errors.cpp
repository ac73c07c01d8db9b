// What goes wrong on the host platform ends with an error that says what and where, and never with a hang.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "check.h"
#include "host_kernel.h"

using namespace host_test;
using namespace std::chrono_literals;

namespace {

constexpr bool sanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

// The error of one launch, on a stream that is then shown to be usable still.
template <class... A>
std::string launch_error(std::shared_ptr<const Module> module, const Shape& shape, const A&... arguments) {
  static auto good = compile("extern \"C\" __global__ void k(int* n) { __syncthreads(); atomicAdd(n, 1); }");
  Stream stream;
  std::string text = error_of([&] {
    stream.launch(make_launch(std::move(module), shape, arguments...));
    if (!stream.synchronize(30s)) throw gin::Error(gin::Error::Kind::timeout, "hangs: " + stream.where());
  });
  int n = 0;
  stream.launch(make_launch(good, {{3, 1, 1}, {70, 1, 1}}, &n));
  CHECK(stream.synchronize(30s));
  CHECK_EQ(n, 210);
  return text;
}

// Exit status and standard error of a process that runs `body`.
template <class F>
std::pair<int, std::string> in_child(F body) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return {-1, ""};
  pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], 2);
    close(pipe_ends[0]);
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(30);
    body();
    std::fflush(nullptr);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, size_t(n));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {status, text};
}

}  // namespace

CASE(barrier_that_ended_threads_do_not_reach) {
  auto k = compile("extern \"C\" __global__ void k() {\n  if (threadIdx.x < 32)\n    __syncthreads();\n}");
  std::string e = launch_error(k, {{1, 1, 1}, {64, 1, 1}});
  CHECK_CONTAINS(e, "kernel k: a barrier that not all threads of the block reach");
  CHECK_CONTAINS(e, "block (0,0,0): threads 0-31 at __syncthreads (kernel.cu:3); threads 32-63 have ended");
}

CASE(barrier_that_one_thread_leaves_out) {
  auto k = compile("extern \"C\" __global__ void k() {\n  if (threadIdx.x == 5) return;\n  __syncthreads();\n}");
  std::string e = launch_error(k, {{3, 1, 1}, {100, 1, 1}});
  CHECK_CONTAINS(e, "threads 0-4,6-99 at __syncthreads (kernel.cu:3); thread 5 has ended");
}

CASE(different_barriers) {
  auto k = compile(
      "extern \"C\" __global__ void k() {\n  if (threadIdx.x == 0)\n    __syncthreads();\n  else\n    "
      "__syncthreads();\n}");
  std::string e = launch_error(k, {{1, 1, 1}, {8, 1, 1}});
  CHECK_CONTAINS(e, "threads of one block wait at different barriers");
  CHECK_CONTAINS(e, "thread 0 at __syncthreads (kernel.cu:3); threads 1-7 at __syncthreads (kernel.cu:5)");
}

CASE(barrier_against_warp) {
  auto k = compile(
      "extern \"C\" __global__ void k() {\n  if (threadIdx.x < 8)\n    __syncwarp();\n  else\n    __syncthreads();\n}");
  std::string e = launch_error(k, {{1, 2, 1}, {16, 1, 1}});
  CHECK_CONTAINS(e, "deadlock: no thread can go on");
  CHECK_CONTAINS(e,
                 "block (0,0,0) and 1 more: threads 0-7 at __syncwarp for lanes 0xffffffff (kernel.cu:3); "
                 "threads 8-15 at __syncthreads (kernel.cu:5)");
}

CASE(warp_masks) {
  auto other = compile("extern \"C\" __global__ void k() { __shfl_sync(0x2, 1, 0); }");
  CHECK_CONTAINS(launch_error(other, {}),
                 "__shfl_sync (kernel.cu:1) with a mask that does not name the calling lane, "
                 "in block (0,0,0) thread (0,0,0)");
  auto mixed = compile(
      "extern \"C\" __global__ void k() {\n  if (threadIdx.x == 0)\n    __shfl_sync(3, 1, 0);\n  else\n    "
      "__ballot_sync(3, 1);\n}");
  CHECK_CONTAINS(launch_error(mixed, {{1, 1, 1}, {2, 1, 1}}),
                 "lanes of one mask call different operations: __ballot_sync (kernel.cu:5) here, __shfl_sync "
                 "(kernel.cu:3) in block (0,0,0) thread (0,0,0)");
  auto circle = compile(
      "extern \"C\" __global__ void k() {\n  unsigned t = threadIdx.x;\n  __syncwarp(1u << t | 1u << (t + 1) % 3);\n}");
  std::string e = launch_error(circle, {{1, 1, 1}, {3, 1, 1}});
  CHECK_CONTAINS(e, "thread 0 at __syncwarp for lanes 0x00000003 (kernel.cu:3)");
  CHECK_CONTAINS(e, "thread 2 at __syncwarp for lanes 0x00000005 (kernel.cu:3)");
}

CASE(assertions_and_traps) {
  auto k = compile(
      "#include <cassert>\nextern \"C\" __global__ void k(int n) {\n  assert(int(threadIdx.x) < n);\n  "
      "__syncthreads();\n"
      "}");
  std::string e = launch_error(k, {{1, 1, 1}, {4, 2, 1}}, 2);
  CHECK_CONTAINS(e, "assertion `int(threadIdx.x) < n` failed (kernel.cu:3), in block (0,0,0) thread (2,0,0)");
  auto trap = compile("extern \"C\" __global__ void k() { if (blockIdx.x == 3) __trap(); }");
  CHECK_CONTAINS(launch_error(trap, {{9, 1, 1}, {33, 1, 1}}),
                 "__trap() (kernel.cu:1), in block (3,0,0) thread (0,0,0)");
}

CASE(launch_shapes) {
  auto k = compile("extern \"C\" __global__ void k() { __shared__ volatile char c[100000]; c[0] = 1; }");
  auto refused = [&](const Shape& s) { return error_of([&] { run(k, s); }); };
  for (Index3 block : {Index3{0, 1, 1}, Index3{1025, 1, 1}, Index3{32, 33, 1}, Index3{1, 1, 65}}) {
    CHECK_CONTAINS(refused({{1, 1, 1}, block}), "is not between 1 and 1024 threads");
  }
  for (Index3 grid : {Index3{0, 1, 1}, Index3{1, 65536, 1}, Index3{1, 1, 65536}, Index3{0x80000000u, 1, 1}}) {
    CHECK_CONTAINS(refused({grid, {1, 1, 1}}), "grid");
  }
  CHECK_CONTAINS(refused({{1, 1, 1}, {1, 1, 1}, 133000}), "bytes of dynamic shared memory; there are 232448");
  CHECK_EQ(refused({{1, 1, 1}, {1, 1, 1}, 130000}), "");
}

CASE(files_that_are_no_kernels) {
  auto error = [](const std::string& path) { return error_of([&] { Module m(path); }); };
  CHECK_CONTAINS(error("/nowhere/k.so"), "No such file");
  CHECK_CONTAINS(error(__FILE__), "does not load");
  std::string lib = folder() + "/empty.so";
  CHECK_EQ(std::system(("echo 'int x;' | ${CXX:-c++} -x c++ -shared -fPIC - -o " + lib).c_str()), 0);
  CHECK_CONTAINS(error(lib), "has no gin_host_entry");
  std::string old = compile_file("extern \"C\" __global__ void k() {}", "k", {}, "-D'GIN_HOST_TEST_VERSION=1'");
  std::string bytes;
  {
    std::ifstream in(old, std::ios::binary);
    std::stringstream s;
    s << in.rdbuf();
    bytes = s.str();
  }
  uint64_t stamp = abi_stamp, other = abi_stamp + (uint64_t(1) << 48);
  size_t at = bytes.find(std::string(reinterpret_cast<char*>(&stamp), 8));
  REQUIRE(at != std::string::npos);
  bytes.replace(at, 8, reinterpret_cast<char*>(&other), 8);
  std::string stale = folder() + "/stale.so";
  std::ofstream(stale, std::ios::binary) << bytes;
  char names[2][32];
  std::snprintf(names[0], 32, "0x%016llx", static_cast<unsigned long long>(other));
  std::snprintf(names[1], 32, "0x%016llx", static_cast<unsigned long long>(stamp));
  CHECK_CONTAINS(error(stale), names[0]);
  CHECK_CONTAINS(error(stale), names[1]);
  CHECK_CONTAINS(error(compile_file("__global__ void k() { __shared__ volatile int x = 5; x = 6; }", "k")),
                 "has an initialiser");
  CHECK_CONTAINS(error(compile_file("void missing(); __global__ void k() { missing(); }", "k")), "does not load");
}

CASE(what_does_not_compile) {
  auto error = [](const std::string& source) { return error_of([&] { compile(source); }); };
  CHECK_CONTAINS(error("__global__ void k() {\n\n  int x = \"\";\n}"), "kernel.cu:3:");
  CHECK_CONTAINS(error("__global__ int k() { return 1; }"), "returns void");
  CHECK_CONTAINS(error("__global__ void k(int& n) { n = 1; }"), "by value");
  CHECK_CONTAINS(error("__global__ void k() { threadIdx.x = 1; }"), "kernel.cu:1:");
  CHECK_CONTAINS(error("__global__ void other() {}"), "k");
}

CASE(waits_of_the_kernel_are_reported_while_it_runs) {
  auto k = compile(R"(
    extern "C" __global__ void k(int* stop) {
      if (threadIdx.x == 0)
        for (gin::host::Waiting w("signal {} >= {}", 7, 1ull << 40); !__ldcv(stop);) w.poll();
      __syncthreads();
    })");
  int stop = 0;
  Stream stream;
  stream.launch(make_launch(k, {{4, 1, 1}, {64, 1, 1}}, &stop));
  CHECK(!stream.synchronize(50ms));
  CHECK_EQ(stream.pending(), 1u);
  std::string where;
  for (int i = 0; i < 100 && where.find("3 more") == std::string::npos; ++i) where = stream.where(10s);
  CHECK_CONTAINS(where,
                 "kernel k, grid (4,1,1), block (64,1,1)\n  block (0,0,0) and 3 more: thread 0 waiting in signal 7 "
                 ">= 1099511627776 (kernel.cu:4); threads 1-63 at __syncthreads (kernel.cu:5)");
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  CHECK(stream.synchronize(30s));
  CHECK_EQ(stream.where(), "no kernel is running");
}

CASE(a_kernel_can_have_a_report_kept) {
  auto k = compile(R"(
    extern "C" __global__ void k() {
      if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) { gin::host::Waiting w("step {}", i); w.poll(); gin::host::capture(); }
      }
      __syncthreads();
    })");
  Stream stream;
  stream.launch(make_launch(k, {{1, 1, 1}, {3, 1, 1}}));
  CHECK(stream.synchronize(30s));
  CHECK_CONTAINS(stream.captured(), "thread 0 waiting in step 0 (kernel.cu:4); threads 1-2 at __syncthreads");
}

CASE(a_running_kernel_is_abandoned) {
  const char* loops[] = {"for (;;) gin::host::yield();", "for (;;) __syncthreads();", "for (;;) __syncwarp();",
                         "while (atomicAdd(n, 1) != -1) {}"};
  for (const char* loop : loops) {
    auto k = compile(std::string("extern \"C\" __global__ void k(int* n) { ") + loop + " }");
    int n = 0, after = 0;
    auto begin = std::chrono::steady_clock::now();
    {
      Stream stream;
      stream.launch(make_launch(k, {{2, 1, 1}, {64, 1, 1}}, &n));
      stream.launch(make_launch(k, {{2, 1, 1}, {64, 1, 1}}, &after));
      CHECK(!stream.synchronize(20ms));
      stream.abandon();
      CHECK_CONTAINS(error_of([&] { stream.synchronize(30s); }), "was stopped before it ended");
      CHECK_EQ(stream.pending(), 0u);
      stream.launch(make_launch(k, {{2, 1, 1}, {64, 1, 1}}, &n));
    }
    CHECK(std::chrono::steady_clock::now() - begin < 20s);
  }
}

CASE(the_first_error_of_a_stream_is_kept) {
  auto bad = compile("extern \"C\" __global__ void k() { __trap(); }");
  auto good = compile("extern \"C\" __global__ void k(int* n) { ++*n; }");
  int n = 0;
  Stream stream;
  stream.launch(make_launch(bad, {}));
  while (stream.pending()) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 3; ++i) stream.launch(make_launch(good, {}, &n));
  CHECK_CONTAINS(error_of([&] { stream.synchronize(30s); }), "__trap()");
  CHECK_EQ(n, 0);
  stream.launch(make_launch(good, {}, &n));
  CHECK(stream.synchronize(30s));
  CHECK_EQ(n, 1);
  stream.close();
  CHECK_CONTAINS(error_of([&] { stream.launch(make_launch(good, {}, &n)); }), "the stream is closed");
}

CASE(a_kernel_that_cannot_be_stopped_is_left_behind) {
  if (sanitized) return;
  auto k = compile("extern \"C\" __global__ void k() { for (volatile int i = 0;; ++i) {} }");
  auto [status, text] = in_child([&] {
    Stream stream;
    stream.launch(make_launch(k, {}));
    CHECK(!stream.synchronize(20ms));
    CHECK_CONTAINS(stream.where(), "running code that neither polls nor synchronises");
  });
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_CONTAINS(text, "gin: kernel k does not poll and cannot be stopped");
}

CASE(faults_of_threads_name_the_thread) {
  if (sanitized) return;
  auto deep = compile(
      "__device__ int f(volatile int* p, int n) { volatile char big[3000]; big[n % 7] = 1; return f(p, n + 1) + "
      "big[0]; "
      "}\nextern \"C\" __global__ void k(int* p) { __syncthreads(); if (threadIdx.x == 7) *p = f(p, 0); "
      "__syncthreads(); }");
  int n = 0;
  auto [status, text] = in_child([&] { run(deep, {{2, 1, 1}, {8, 1, 1}}, &n); });
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  CHECK_CONTAINS(text, "gin: kernel k, block (0,0,0) thread (7,0,0): stack overflow: a thread has 256 KiB");
  auto wild = compile("extern \"C\" __global__ void k(int* p) { p[blockIdx.x] = 1; }");
  auto [status2, text2] = in_child([&] { run(wild, {{2, 1, 1}, {1, 1, 1}}, static_cast<int*>(nullptr)); });
  CHECK(WIFSIGNALED(status2) && WTERMSIG(status2) == SIGSEGV);
  CHECK_CONTAINS(text2, "gin: kernel k, block (0,0,0) thread (0,0,0): segmentation fault at address 0x0, in the ");
  CHECK_CONTAINS(text2, "kernel's own code or in an operation of gin whose arguments GIN_CHECK=1 would check; peer_");
  auto far = compile("extern \"C\" __global__ void k(int* p) { *p = 1; }");
  auto [status3, text3] = in_child([&] { run(far, {}, reinterpret_cast<int*>(uintptr_t(1) << 46)); });
  CHECK(WIFSIGNALED(status3) && WTERMSIG(status3) == SIGSEGV);
  CHECK_CONTAINS(text3, "GIN_CHECK=1");
  CHECK(text3.find("peer_pointer") == std::string::npos);
}

CASE(no_address_space) {
  if (sanitized) return;
  auto k = compile("extern \"C\" __global__ void k() { __syncthreads(); }");
  auto [status, text] = in_child([&] {
    rlimit small{uint64_t(2) << 30, uint64_t(2) << 30};
    setrlimit(RLIMIT_AS, &small);
    std::string e = error_of([&] { run(k, {}); });
    std::fprintf(stderr, "%s", e.c_str());
  });
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_CONTAINS(text, "cannot reserve");
  CHECK_CONTAINS(text, "ulimit -v");
}

CASE(resident_threads_that_wait_for_others) {
  auto k = compile(R"(
    extern "C" __global__ void k(int* n, int blocks) {
      atomicAdd(n, 1);
      for (gin::host::Waiting w("all blocks"); atomicAdd(n, 0) < blocks;) w.poll();
    })");
  int n = 0;
  Stream stream({{10, 10, 1000}, 1024});
  stream.launch(make_launch(k, {{3, 1, 1}, {512, 1, 1}}, &n, 3 * 512));
  std::string where;
  for (int i = 0; i < 100 && where.find("at most") == std::string::npos; ++i) {
    CHECK(!stream.synchronize(100ms));
    where = stream.where(10s);
  }
  CHECK_CONTAINS(where, "1 blocks have not started (at most 1024 threads are resident at once)");
  stream.abandon();
  CHECK_CONTAINS(error_of([&] { stream.synchronize(30s); }), "was stopped");
}

CHECK_MAIN
