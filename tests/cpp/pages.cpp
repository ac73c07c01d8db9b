// Machines whose pages are larger than this one's may be: what a GPU is given begins on a page and is whole pages.
#include <cstdlib>

#include "nccl_plugin/message.h"
#include "plugin_ranks.h"
#include "proxy/proxy.h"
#include "wire/registry.h"

using namespace plugin;

namespace {

constexpr long pretended = 64 << 10;
bool pretending = false;

}  // namespace

extern "C" long __sysconf(int name);

// In place of libc's, for the plugin and the driver as well. Sanitizers call it before they are ready.
extern "C" __attribute__((visibility("default"), no_sanitize("address", "thread", "undefined"))) long sysconf(
    int name) noexcept {
  return pretending && name == _SC_PAGESIZE ? pretended : __sysconf(name);
}

CASE(the_rings_of_a_proxy) {
  pretending = true;
  gin::Record record{};
  {
    std::shared_ptr<gin::wire::Fabric> fabric = gin::wire::make_fabric("null", 0, 2);
    for (uint32_t contexts : {1u, 3u, 5u}) {
      gin::proxy::Proxy proxy(fabric, {contexts, 2, 2}, 2, record, nullptr, {});
      const auto [memory, bytes] = proxy.memory();
      CHECK_EQ(uintptr_t(memory) % pretended, 0u);
      CHECK_EQ(bytes % pretended, 0u);
    }
  }
  pretending = false;
}

// The pretended driver takes nothing but whole pages.
CASE(what_the_rma_plugin_pins) {
  void* driver = dlopen(GIN_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
  static const auto enter = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  before_connect = [](int) { enter(reinterpret_cast<void*>(1)); };
  for (bool other : {false, true}) {
    pretending = other;
    CHECK_EQ(LaneMemory::head_bytes(3) % uint64_t(sysconf(_SC_PAGESIZE)), 0u);
    with_ranks(
        3,
        [](Rank& r) {
          uint64_t words[3] = {};
          void* window = r.add(words, sizeof(words));
          CHECK(window != nullptr);
          for (int peer = 0; peer < r.size(); ++peer) {
            void* request = nullptr;
            CHECK_EQ(r.put_signal(nullptr, 0, 0, nullptr, 0, peer, window, size_t(r.rank()) * 8, 5, &request), 0);
            CHECK_EQ(r.wait(request), 0);
          }
          for (uint64_t& word : words) CHECK(r.wait_word(word, 5));
          CHECK(r.barrier());
        },
        3);
    pretending = false;
  }
}

CHECK_MAIN
