// gin_posting [PUTS [BATCH]]: one thread fills a ring with puts and steps the engine over the null wire, BATCH at a time.
// For counting the engine's instructions: everything between ring and wire happens in gin::proxy::Channel::step.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "gin/backends/ibrc_proxy/producer.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

int main(int argc, char** argv) {
  using namespace gin;
  const uint64_t puts = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  const uint64_t batch = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  try {
    Record record{};
    proxy::ProxyOptions options;
    proxy::Proxy proxy(wire::make_fabric("null", 0, 2), {1, 64, 2}, 16, record, nullptr, options);
    const ibrc::Ring& ring = proxy.rings()[0];
    ibrc::Fields put;
    put.op = ibrc::Op::put;
    put.peer = 1;
    put.bytes = 8;
    put.has_signal = true;
    for (uint64_t done = 0; done < puts;) {
      const uint64_t end = std::min(puts, done + batch);
      for (; done < end; ++done) {
        put.dst_offset = put.src_offset = 8 * done;
        ibrc::publish(ring, ibrc::reserve(ring, 1).first, put);
      }
      while (ibrc::load_acquire(&ring.progress->retired) < end) proxy.step();
    }
    std::printf("%llu puts in batches of %llu\n", static_cast<unsigned long long>(puts),
                static_cast<unsigned long long>(batch));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gin_posting: %s\n", error.what());
    return 1;
  }
}
