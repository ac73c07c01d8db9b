// Defects planted in the library itself are noticed: in the wire by faults, in device code by patched copies of headers.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "check.h"
#include "sim_job.h"

using namespace sim_test;

namespace {

// Uses every promise: split puts, ordered signals, fence, quiet, flush and counters, more operations than the ring holds.
constexpr const char* source = R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm), other(comm, 1);
  const uint32_t to = (net.rank() + 1) % net.size(), from = (net.rank() + net.size() - 1) % net.size();
  auto* in = static_cast<volatile uint64_t*>(a.local());
  auto* out = static_cast<volatile uint64_t*>(b.local());
  uint64_t wrong = 0;
  for (uint64_t turn = 1; turn <= 40; ++turn) {
    for (int i = 0; i < 32; ++i) out[i] = 1000 * turn + net.rank();
    for (int i = 0; i < 4; ++i) net.put(gin::thread, to, a, 64 * i, b, 64 * i, 64);
    net.signal(to, gin::ordered(gin::signal_inc{0}));
    net.flush(gin::thread);
    for (int i = 0; i < 32; ++i) out[i] = 7;
    net.wait(gin::thread, 0, turn);
    for (int i = 0; i < 32; ++i) wrong += in[i] != 1000 * turn + from;
    wrong += net.read(0) != turn;
    net.put_value(to, a, 512, turn);
    net.fence(gin::thread);
    net.put_value(to, a, 512, turn + 1);
    net.quiet(gin::thread);
    other.signal(to, gin::signal_inc{1});
    other.wait(gin::thread, 1, turn);
    wrong += in[64] != turn + 1;
    net.barrier(gin::thread);
  }
  out[100] = wrong;
}
)";

bool fails(const std::shared_ptr<host::Module>& module, const std::string& backend, const sim::Texts& faults,
           uint64_t seed) {
  Job job(2, options(seed, faults), 4096, backend, 2, 1'000'000'000);
  job.launch(module);
  CHECK(job.run());
  for (uint32_t rank = 0; rank < 2; ++rank)
    if (job.window<uint64_t>(rank, 1)[100] || job.record(rank).state) return true;
  return false;
}

bool noticed(const std::shared_ptr<host::Module>& module, const std::string& backend, const sim::Texts& faults = {}) {
  for (uint64_t seed = 0; seed < 50; ++seed)
    if (fails(module, backend, faults, seed)) return true;
  return false;
}

// A copy of the backend's headers with one piece of text replaced.
std::string patched(const std::string& backend, const std::string& file, const std::string& from,
                    const std::string& to) {
  namespace fs = std::filesystem;
  static int copies = 0;
  const fs::path folder = host_test::folder() + "/patched" + std::to_string(copies++);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(host_test::root() + "/gin/backends/" + backend))
    if (entry.is_regular_file()) fs::copy(entry.path(), folder);
  std::stringstream text;
  text << std::ifstream(folder / file).rdbuf();
  std::string all = text.str();
  const size_t at = all.find(from);
  if (at == std::string::npos) {
    check::fail(file.c_str(), 0, "\"" + from + "\" is not there to be replaced");
  } else {
    all.replace(at, from.size(), to);
  }
  std::ofstream(folder / file) << all;
  return folder.string();
}

void check_patch(const std::string& backend, const std::string& file, const std::string& from, const std::string& to) {
  const std::string folder = patched(backend, file, from, to);
  const auto module = host_test::compile("#include <gin/gin.cuh>\n" + std::string(source), "k", {},
                                         "-I" + folder + " " + kernel_flags(backend));
  if (!noticed(module, backend)) check::fail(file.c_str(), 0, "not noticed: " + to);
}

}  // namespace

CASE(defects_of_the_wire) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"}) {
    const auto module = compile(source, backend);
    CHECK(!noticed(module, backend));
    CHECK(noticed(module, backend, {{"fault.ignore_order", "1"}}));
    CHECK(noticed(module, backend, {{"fault.settle_early", "1"}}));
    // What NVSHMEM's flush waits for is more than completion.
    CHECK_EQ(noticed(module, backend, {{"fault.complete_early", "1"}}), std::string(backend) != "nvshmem");
    CHECK(noticed(module, backend, {{"fault.lose_at", "201"}}));
    CHECK(noticed(module, backend, {{"fault.signal_twice_one_in", "50"}}));
  }
}

CASE(no_fence_before_a_signal) {
  check_patch("nvshmem", "device.cuh", "    if (signal.ordered) nvshmem_fence();\n    nvshmemx_signal_op",
              "    nvshmemx_signal_op");
  check_patch("ibrc_proxy", "device.cuh", "fields.ordered = signal.ordered;", "fields.ordered = false;");
}

CASE(acknowledged_before_settled) {
  check_patch("ibrc_proxy", "device.cuh", "&ring.progress->settled", "&ring.progress->retired");
}

CASE(a_descriptor_lost_at_wrap_around) {
  check_patch("ibrc_proxy", "device.cuh", "publish(ring, reserved.first, fields);",
              "if (reserved.first % ring.depth == ring.depth - 1) { Fields none; none.op = Op::signal; none.peer = "
              "fields.peer; "
              "none.immediate = 0; none.has_signal = true; publish(ring, reserved.first, none); } else publish(ring, "
              "reserved.first, fields);");
}

CASE(a_signal_applied_twice) {
  check_patch("ibrc_proxy", "device.cuh", "fields.immediate = signal.add;", "fields.immediate = 2 * signal.add;");
}

CHECK_MAIN
