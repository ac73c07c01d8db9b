// The shm wire between two processes: every verb, by mapping and through the kernel, and what it refuses.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "error.h"
#include "memory/segment.h"
#include "requests.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::wire;

namespace {

constexpr uint64_t control_bytes = 256, data_bytes = 4096;

// A message of one process to the other; the processes are parent and child.
class Pipe {
 public:
  Pipe() { ok_ = pipe(ends_) == 0; }
  ~Pipe() { close(ends_[0]), close(ends_[1]); }
  void send(std::string text) {
    text.resize(512);
    ok_ = ok_ && write(ends_[1], text.data(), text.size()) == 512;
  }
  std::string receive() {
    std::string text(512, '\0');
    ok_ = ok_ && read(ends_[0], text.data(), text.size()) == 512;
    return text.c_str();
  }
  bool ok() const { return ok_; }

 private:
  int ends_[2];
  bool ok_;
};

// One rank of two: control window in a segment, data either in a segment or in memory of its own.
struct Rank {
  Rank(uint32_t number, bool mapped, const Options& options = {})
      : rank(number),
        fabric(make_fabric("shm", number, 2, options)),
        control_memory(memory::Segment::create(control_bytes, "c")) {
    if (mapped)
      data_memory = memory::Segment::create(data_bytes, "d");
    else
      own.resize(data_bytes);
    base = mapped ? static_cast<char*>(data_memory->address()) : own.data();
    fabric_control = fabric->add_region(control, control_memory->address(), control_bytes);
    fabric_data = fabric->add_region(data, base, data_bytes);
    fabric->add_region(result, results, sizeof(results));
  }

  void exchange(Pipe& out, Pipe& in) {
    for (const std::string& text :
         {control_memory->export_name(), data_memory ? data_memory->export_name() : "", fabric_control, fabric_data})
      out.send(text);
    const std::string control_name = in.receive(), data_name = in.receive();
    const std::string peer_control = in.receive(), peer_data = in.receive();
    peer_control_memory = memory::Segment::open(control_name);
    if (!data_name.empty()) peer_data_memory = memory::Segment::open(data_name);
    fabric->import_region(control, 1 - rank, peer_control, peer_control_memory->address());
    fabric->import_region(data, 1 - rank, peer_data, peer_data_memory ? peer_data_memory->address() : nullptr);
    endpoint = fabric->endpoint();
  }

  Completion run(const Request& request) {
    CHECK_EQ(endpoint->post(&request, 1), size_t(1));
    Completion c{};
    CHECK_EQ(endpoint->poll(&c, 1), size_t(1));
    CHECK_EQ(c.token, request.token);
    CHECK_EQ(c.peer, request.peer);
    return c;
  }

  uint64_t* signal(uint64_t offset) {
    return reinterpret_cast<uint64_t*>(static_cast<char*>(control_memory->address()) + offset);
  }

  uint32_t rank;
  std::unique_ptr<Fabric> fabric;
  std::shared_ptr<memory::Segment> control_memory, data_memory, peer_control_memory, peer_data_memory;
  std::vector<char> own;
  char* base;
  alignas(8) uint64_t results[4] = {};
  std::string fabric_control, fabric_data;
  std::unique_ptr<Endpoint> endpoint;
};

Request with_signal(Request r, uint64_t offset, uint64_t add) {
  r.has_signal = true;
  r.signal_region = control;
  r.signal_offset = offset;
  r.signal_add = add;
  return r;
}

// Rank 1 in a child waits for signal 0 to become 1, then for it to become 2 after having written an answer.
int child(Pipe& out, Pipe& in, bool mapped) {
  alarm(20);
  Rank me(1, mapped);
  for (uint64_t i = 0; i < data_bytes; ++i) me.base[i] = char(i * 7);
  me.exchange(out, in);
  while (__atomic_load_n(me.signal(0), __ATOMIC_ACQUIRE) < 1) std::this_thread::yield();
  for (uint64_t i = 0; i < 1000; ++i)
    if (me.base[100 + i] != char(i)) return 1;
  if (me.base[99] != char(99 * 7) || me.base[1100] != char(1100 * 7)) return 2;
  uint64_t value;
  std::memcpy(&value, me.base + 2000, 8);
  if (value != 0x8877665544332211ull) return 3;
  out.send("seen");
  in.receive();  // what is left may use this memory until the parent is done
  return 0;
}

void two_processes(bool mapped) {
  Pipe to_child, to_parent;
  std::fflush(nullptr);
  pid_t pid = fork();
  if (pid == 0) _exit(child(to_parent, to_child, mapped));

  Rank me(0, mapped);
  for (uint64_t i = 0; i < 1000; ++i) me.base[i] = char(i);
  me.exchange(to_child, to_parent);
  Request value = request(Verb::value, 1, 2000, 0, 8);
  value.value = 0x8877665544332211ull;
  CHECK(me.run(value).code == Code::ok);
  CHECK(me.run(with_signal(request(Verb::put, 1, 100, 0, 1000), 0, 1)).code == Code::ok);
  CHECK_EQ(to_parent.receive(), std::string("seen"));

  CHECK(me.run(request(Verb::get, 1, 3000, 2000, 777)).code == Code::ok);
  for (uint64_t i = 0; i < 777; ++i) CHECK_EQ(me.base[2000 + i], char((3000 + i) * 7));

  Request add = request(Verb::atomic, 1, 8, 8, 8);
  add.local_region = result, add.value = 5, add.remote_region = control;
  CHECK(me.run(add).code == Code::ok);
  CHECK(me.run(add).code == Code::ok);
  CHECK_EQ(me.results[1], 5ull);
  add.remote_region = data, add.remote_offset = 4000;
  const Completion on_data = me.run(add);
  CHECK(on_data.code == (mapped ? Code::ok : Code::unsupported));

  // Signals of a request that is out of range are not sent either.
  for (Request bad : {request(Verb::put, 1, data_bytes - 3, 0, 4), request(Verb::put, 1, ~0ull, 0, 2),
                      request(Verb::get, 1, 0, 4090, 7), request(Verb::put, 1, 0, 0, ~0ull),
                      request(Verb::value, 1, data_bytes - 7, 0, 8), request(Verb::value, 1, 0, 0, 9)}) {
    CHECK(me.run(with_signal(bad, 16, 1)).code == Code::range);
  }
  CHECK(me.run(with_signal(request(Verb::put, 1, 0, 0, 8), control_bytes - 7, 1)).code == Code::range);
  CHECK(me.run(with_signal(request(Verb::put, 1, 0, 0, 8), 4, 1)).code == Code::range);
  Request nowhere = request(Verb::put, 1, 0, 0, 8);
  nowhere.remote_region = 77;
  CHECK(me.run(nowhere).code == Code::range);
  CHECK(me.run(request(Verb::put, 7, 0, 0, 8)).code == Code::range);
  Request ask = request(Verb::atomic, 1, 16, 0, 8);
  ask.local_region = result, ask.remote_region = control;
  CHECK(me.run(ask).code == Code::ok);
  CHECK_EQ(me.results[0], 0ull);

  to_child.send("done");
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(to_child.ok() && to_parent.ok());
  const Completion late = me.run(request(Verb::put, 1, 0, 0, 8));
  CHECK(late.code == (mapped ? Code::ok : Code::remote));  // mapped memory outlives its process
  if (!mapped) CHECK_EQ(late.detail, uint64_t(ESRCH));
}

}  // namespace

CASE(mapped_memory_of_another_process) { two_processes(true); }
CASE(memory_of_another_process_through_the_kernel) { two_processes(false); }

CASE(own_rank_is_a_peer) {
  Rank me(0, true);
  auto endpoint = me.fabric->endpoint();
  me.endpoint = std::move(endpoint);
  std::iota(me.base, me.base + 100, char(0));
  CHECK(me.run(with_signal(request(Verb::put, 0, 2, 0, 100), 24, 3)).code == Code::ok);  // overlapping as well
  CHECK_EQ(me.base[101], 99);
  CHECK_EQ(*me.signal(24), 3ull);
  CHECK(me.run(with_signal(request(Verb::put, 0, data_bytes, data_bytes, 0), 24, 3)).code == Code::ok);
  CHECK(me.run(with_signal(request(Verb::signal, 0, 0, 0, 0), 24, ~0ull)).code == Code::ok);
  CHECK_EQ(*me.signal(24), 5ull);
  CHECK(me.run(request(Verb::fence, 0, 0, 0, 0)).code == Code::ok);
  CHECK(me.endpoint->settled());
}

CASE(values_of_every_size_at_every_place) {
  Rank me(0, true);
  me.endpoint = me.fabric->endpoint();
  for (uint64_t bytes = 1; bytes <= 8; ++bytes) {
    for (uint64_t offset = 0; offset < 9; ++offset) {
      std::memset(me.base, 0x55, 32);
      Request r = request(Verb::value, 0, offset, 0, bytes);
      r.value = 0xf8f7f6f5f4f3f2f1ull;
      CHECK(me.run(r).code == Code::ok);
      for (uint64_t i = 0; i < 32; ++i)
        CHECK_EQ(uint8_t(me.base[i]), i >= offset && i < offset + bytes ? uint8_t(0xf1 + i - offset) : uint8_t(0x55));
    }
  }
}

CASE(atomics) {
  Rank me(0, true);
  me.endpoint = me.fabric->endpoint();
  const auto apply = [&](Atomic op, uint64_t bytes, uint64_t start, uint64_t value, uint64_t compare) {
    std::memcpy(me.base + 8, &start, 8);
    Request r = request(Verb::atomic, 0, 8, 0, bytes);
    r.atomic = op, r.local_region = result, r.value = value, r.compare = compare;
    me.results[0] = 0;
    CHECK(me.run(r).code == Code::ok);
    CHECK_EQ(me.results[0], bytes == 4 ? uint32_t(start) : start);
    uint64_t after;
    std::memcpy(&after, me.base + 8, 8);
    return after;
  };
  CHECK_EQ(apply(Atomic::fetch_add, 8, ~0ull, 3, 0), 2ull);
  CHECK_EQ(apply(Atomic::fetch_add, 4, 0x1ffffffffull, 3, 0), 0x100000002ull);  // does not carry into the next word
  CHECK_EQ(apply(Atomic::compare_swap, 8, 5, 9, 5), 9ull);
  CHECK_EQ(apply(Atomic::compare_swap, 8, 5, 9, 6), 5ull);
  CHECK_EQ(apply(Atomic::compare_swap, 4, 5, 9, 0x700000005ull), 9ull);
  CHECK_EQ(apply(Atomic::swap, 8, 5, 1ull << 63, 0), 1ull << 63);
  CHECK_EQ(apply(Atomic::fetch_and, 8, 0xff, 0x0f, 0), 0x0full);
  CHECK_EQ(apply(Atomic::fetch_or, 8, 0xf0, 0x0f, 0), 0xffull);
  CHECK_EQ(apply(Atomic::fetch_xor, 8, 0xff, 0x0f, 0), 0xf0ull);
  for (auto [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{{4, 8}, {2, 4}, {0, 2}, {data_bytes, 8}}) {
    Request r = request(Verb::atomic, 0, offset, 0, bytes);
    r.local_region = result;
    CHECK(me.run(r).code == Code::range);
  }
}

CASE(a_queue_takes_what_it_has_room_for) {
  Rank me(0, true, {{"queue", "3"}});
  me.endpoint = me.fabric->endpoint();
  std::vector<Request> requests(5, request(Verb::signal, 0, 0, 0, 0));
  for (uint64_t i = 0; i < 5; ++i) requests[i].token = i;
  Completion done[5];
  CHECK_EQ(me.endpoint->post(requests.data(), 5), size_t(3));
  CHECK_EQ(me.endpoint->post(requests.data() + 3, 2), size_t(0));
  CHECK_EQ(me.endpoint->poll(done, 2), size_t(2));
  CHECK_EQ(me.endpoint->post(requests.data() + 3, 2), size_t(2));
  CHECK_EQ(me.endpoint->poll(done, 5), size_t(3));
  CHECK_EQ(done[0].token, 2ull);
  CHECK_EQ(done[2].token, 4ull);
}

CASE(regions_come_and_go) {
  Rank me(0, true);
  me.endpoint = me.fabric->endpoint();
  CHECK_THROWS(Error, "already registered", me.fabric->add_region(data, me.base, 8));
  CHECK_THROWS(Error, "does not exist", me.fabric->add_region(1u << 20, me.base, 8));
  CHECK_THROWS(Error, "register the region", me.fabric->import_region(50, 1, me.fabric_data, nullptr));
  CHECK_THROWS(Error, "one wire on all ranks", me.fabric->import_region(data, 1, "verbs 1 2 3", nullptr));
  CHECK_THROWS(
      Error, "has ended",
      me.fabric->import_region(
          data, 1, "gin-shm-1 2147483000 5 4096 8 " + me.fabric_data.substr(me.fabric_data.rfind(' ') + 1), nullptr));
  CHECK_THROWS(Error, "another host", me.fabric->import_region(data, 1, "gin-shm-1 1 5 4096 8 elsewhere", nullptr));
  CHECK(me.run(request(Verb::put, 1, 0, 0, 8)).code == Code::range);  // never imported
  me.fabric->remove_region(data);
  CHECK(me.run(request(Verb::put, 0, 0, 0, 8)).code == Code::range);
  me.fabric->add_region(data, me.base, 8);
  CHECK(me.run(request(Verb::put, 0, 0, 0, 8)).code == Code::ok);
  CHECK(me.run(request(Verb::put, 0, 0, 0, 9)).code == Code::range);
}

CHECK_MAIN
