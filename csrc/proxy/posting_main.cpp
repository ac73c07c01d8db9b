// gin_posting [COUNT [BATCH [put|value|signal]]]: one thread fills a ring with puts that signal, or values that do, or
// signals, and steps the engine over the null wire, BATCH at a time.
// For counting the engine's instructions: everything between ring and wire happens in gin::proxy::Channel::step.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

namespace {

gin::ibrc::Op op_of(const std::string& name) {
  using gin::ibrc::Op;
  return name == "value" ? Op::value : name == "signal" ? Op::signal : Op::put;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gin;
  const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  const uint64_t batch = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  const std::string what = argc > 3 ? argv[3] : "put";
  try {
    Record record{};
    proxy::ProxyOptions options;
    proxy::Proxy proxy(wire::make_fabric("null", 0, 2), {1, 64, 2}, 16, record, nullptr, options);
    const ibrc::Ring& ring = proxy.rings()[0];
    ibrc::Fields operation;
    operation.op = op_of(what);
    operation.peer = 1;
    operation.bytes = 8;
    operation.immediate = 1;
    operation.has_signal = true;
    for (uint64_t done = 0; done < count;) {
      const uint64_t end = std::min(count, done + batch);
      for (; done < end; ++done) {
        operation.dst_offset = operation.src_offset = 8 * done;
        ibrc::publish(ring, ibrc::reserve(ring, 1).first, operation);
      }
      while (ibrc::load_acquire(&ring.progress->retired) < end) proxy.step();
    }
    std::printf("%llu x %s in batches of %llu\n", static_cast<unsigned long long>(count), what.c_str(),
                static_cast<unsigned long long>(batch));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_posting: %s\n", error.what());
    return 1;
  }
}
