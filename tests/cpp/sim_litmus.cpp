// Programs that lean on an order that nobody promised fail within a few seeds; the right ones never do.
#include <functional>

#include "check.h"
#include "sim_job.h"

using namespace sim_test;

namespace {

const bool sanitized = !host_test::sanitizer_flags().empty();

struct Litmus {
  const char* name;
  std::string wrong, right;  // kernels; a failure is counted in the first 8 bytes of window b of a rank
  uint32_t ranks = 2;
  bool nvshmem = false;  // on that backend as well; its flush and its fence do more than they have to
  uint32_t seeds = sanitized ? 25 : 60, good_seeds = seeds;
};

// What each kernel is wrapped in: `r` is the rank, `n` how many there are; `in` and `out` its windows as words.
std::string kernel(const std::string& body) {
  return R"(
extern "C" __global__ void k(gin::Comm comm, gin::Window a, gin::Window b) {
  gin::Context net(comm), other(comm, 1);
  const uint32_t r = net.rank(), n = net.size();
  auto* in = static_cast<volatile uint64_t*>(a.local());
  auto* out = static_cast<volatile uint64_t*>(b.local());
  auto expect = [&](uint64_t seen, uint64_t wanted) { if (seen != wanted) out[0] = out[0] + 1; };
  (void)r, (void)n, (void)in, (void)other;
)" + body +
         "}\n";
}

bool fails(const std::shared_ptr<host::Module>& module, const Litmus& litmus, const std::string& backend,
           const sim::Options& options) {
  Job job(litmus.ranks, options, 4096, backend);
  job.launch(module);
  try {
    if (!job.run()) return true;
  } catch (const Error&) {
    return true;
  }
  for (uint32_t rank = 0; rank < litmus.ranks; ++rank)
    if (job.window<uint64_t>(rank, 1)[0] || job.record(rank).state) return true;
  return false;
}

void check_litmus(const Litmus& litmus) {
  for (const char* backend : {"ibrc_proxy", "nvshmem"}) {
    if (std::string(backend) == "nvshmem" && !litmus.nvshmem) continue;
    const auto wrong = compile(kernel(litmus.wrong), backend), right = compile(kernel(litmus.right), backend);
    for (const char* policy : {"random", "pct"}) {
      const auto options = [&](uint64_t seed) {
        return sim_test::options(seed, {{"policy", policy}, {"steps", "300"}});
      };
      uint32_t caught = 0, first = 0;
      for (uint64_t seed = 0; seed < litmus.seeds; ++seed) {
        if (!fails(wrong, litmus, backend, options(seed))) continue;
        if (!caught++) first = uint32_t(seed);
      }
      std::printf("     %-24s %-10s %-6s caught by %u of %u seeds, first %u\n", litmus.name, backend, policy, caught,
                  litmus.seeds, first);
      if (!caught) check::fail(litmus.name, 0, std::string("not caught on ") + backend + " by " + policy);
      for (uint64_t seed = 0; seed < litmus.good_seeds; ++seed) {
        if (!fails(right, litmus, backend, options(seed))) continue;
        check::fail(
            litmus.name, 0,
            std::string("the right kernel fails on ") + backend + " by " + policy + ", seed " + std::to_string(seed));
        break;
      }
    }
  }
}

const std::string fill = "for (int i = 1; i <= 64; ++i) out[i] = 100 * r + i;\n";
const std::string read_left = "for (int i = 1; i <= 64; ++i) expect(in[i], 100 * ((r + n - 1) % n) + i);\n";
const std::string right_neighbour = "const uint32_t to = (r + 1) % n;\n";

}  // namespace

CASE(weak_signal_after_put) {
  check_litmus({"weak signal after put",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512); net.signal(to, gin::signal_inc{0});"
                    "net.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512); net.signal(to, gin::ordered(gin::signal_inc{0}));"
                    "net.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);",
                2, true});
}

CASE(missing_fence) {
  check_litmus({"missing fence",
                right_neighbour + "net.put_value(to, a, 8, uint64_t(1)); net.put_value(to, a, 8, uint64_t(2));"
                                  "net.barrier(gin::thread); expect(in[1], 2);",
                right_neighbour + "net.put_value(to, a, 8, uint64_t(1)); net.fence(gin::thread);"
                                  "net.put_value(to, a, 8, uint64_t(2)); net.barrier(gin::thread); expect(in[1], 2);"});
}

CASE(other_context) {
  check_litmus({"other context",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512);"
                    "other.signal(to, gin::ordered(gin::signal_inc{0}));"
                    "other.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512); net.quiet(gin::thread);"
                    "other.signal(to, gin::ordered(gin::signal_inc{0}));"
                    "other.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);"});
}

CASE(source_reused_before_flush) {
  check_litmus({"source reused",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512, gin::signal_inc{0});"
                    "for (int i = 1; i <= 64; ++i) out[i] = 7;"
                    "net.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512, gin::signal_inc{0});"
                    "net.flush(gin::thread); for (int i = 1; i <= 64; ++i) out[i] = 7;"
                    "net.wait(gin::thread, 0, 1);" +
                    read_left + "net.barrier(gin::thread);"});
}

CASE(cumulative_signal) {
  check_litmus(
      {"cumulative signal",
       fill + right_neighbour +
           "for (int c = 0; c < 4; ++c) net.put(gin::thread, to, a, 8 + 128 * c, b, 8 + 128 * c, 128, "
           "gin::signal_inc{0});"
           "for (int c = 0; c < 4; ++c) { net.wait(gin::thread, 0, c + 1); for (int i = 1 + 16 * c; i <= 16 * c + "
           "16; ++i) expect(in[i], 100 * ((r + n - 1) % n) + i); } net.barrier(gin::thread);",
       fill + right_neighbour +
           "for (int c = 0; c < 4; ++c) net.put(gin::thread, to, a, 8 + 128 * c, b, 8 + 128 * c, 128, "
           "gin::ordered(gin::signal_inc{0}));"
           "for (int c = 0; c < 4; ++c) { net.wait(gin::thread, 0, c + 1); for (int i = 1 + 16 * c; i <= 16 * c + "
           "16; ++i) expect(in[i], 100 * ((r + n - 1) % n) + i); } net.barrier(gin::thread);",
       2, true});
}

CASE(base_read_after_first_put) {
  check_litmus({"base read too late",
                right_neighbour + "net.put_value(to, a, 8, uint64_t(5), gin::signal_inc{0});"
                                  "const uint64_t base = net.read(0);"
                                  "if (!net.wait(gin::thread, 0, base + 1, 1000000000).ok()) out[0] = 1;",
                right_neighbour + "const uint64_t base = net.epoch(0);"
                                  "net.put_value(to, a, 8, uint64_t(5), gin::signal_inc{0});"
                                  "if (!net.wait(gin::thread, 0, base + 1, 1000000000).ok()) out[0] = 1;"
                                  "expect(in[1], 5);"});
}

CASE(reset_while_increments_fly) {
  const std::string send = "for (int i = 0; i < 4; ++i) net.signal(to, gin::signal_inc{0});";
  check_litmus({"reset in flight",
                right_neighbour + send +
                    "net.wait(gin::thread, 0, 2); net.reset(0); net.barrier(gin::thread);"
                    "expect(net.read(0), 0); net.barrier(gin::thread, gin::world, 1);",
                right_neighbour + send +
                    "net.wait(gin::thread, 0, 4); net.barrier(gin::thread); net.reset(0);"
                    "net.barrier(gin::thread, gin::world, 1); expect(net.read(0), 0);"});
}

CASE(quiet_and_flush) {
  check_litmus({"flush taken for quiet",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512); net.flush(gin::thread);"
                    "other.signal(to, gin::signal_inc{1}); other.wait(gin::thread, 1, 1);" +
                    read_left + "net.barrier(gin::thread);",
                fill + right_neighbour +
                    "net.put(gin::thread, to, a, 8, b, 8, 512); net.quiet(gin::thread);"
                    "other.signal(to, gin::signal_inc{1}); other.wait(gin::thread, 1, 1);" +
                    read_left + "net.barrier(gin::thread);"});
}

CASE(gets_before_flush) {
  check_litmus({"get without flush",
                fill + "net.barrier(gin::thread);" + right_neighbour +
                    "net.get(gin::thread, to, b, 8, a, 8, 512);"
                    "for (int i = 1; i <= 64; ++i) expect(in[i], 100 * to + i); net.barrier(gin::thread);",
                fill + "net.barrier(gin::thread);" + right_neighbour +
                    "net.get(gin::thread, to, b, 8, a, 8, 512); net.flush(gin::thread);"
                    "for (int i = 1; i <= 64; ++i) expect(in[i], 100 * to + i); net.barrier(gin::thread);"});
}

CHECK_MAIN
