// Wires by name, their options, and the faults that tests put in front of them.
#include <algorithm>

#include "check.h"
#include "error.h"
#include "wire/faulty.h"
#include "wire/registry.h"

using namespace gin;
using namespace gin::wire;

namespace {

Request numbered(uint64_t token, uint32_t peer = 0) {
  Request r{};
  r.verb = Verb::put;
  r.token = token;
  r.peer = peer;
  return r;
}

}  // namespace

CASE(unknown_names_are_answered_with_the_known) {
  CHECK_THROWS(Error, "shm, null", make_fabric("infiniband", 0, 1));
  CHECK_THROWS(Error, "no option 'colour'", make_fabric("null", 0, 1, {{"colour", "red"}}));
  CHECK_THROWS(Error, "max_message is '0'", make_fabric("null", 0, 1, {{"max_message", "0"}}));
  CHECK_THROWS(Error, "queue is 'many'", make_fabric("shm", 0, 1, {{"queue", "many"}}));
  CHECK_THROWS(Error, "queue is '1x'", make_fabric("shm", 0, 1, {{"queue", "1x"}}));
  CHECK_THROWS(Error, "is not a rank", make_fabric("null", 1, 1));
  CHECK_THROWS(Error, "is not a rank", make_fabric("null", 0, 0));
  const std::vector<std::string> all = names();
  for (const char* name : {"shm", "null", "verbs", "cuda"}) CHECK_EQ(std::count(all.begin(), all.end(), name), 1);
}

CASE(max_message_is_stated) {
  CHECK_EQ(make_fabric("null", 0, 1)->max_message(), 1ull << 30);
  CHECK_EQ(make_fabric("shm", 0, 1, {{"max_message", "4096"}})->max_message(), 4096ull);
  CHECK_EQ(make_fabric("shm", 0, 1, {{"max_message", "7"}, {"fault.accept", "1"}})->max_message(), 7ull);
}

CASE(null_completes_everything_in_order) {
  auto endpoint = make_fabric("null", 0, 2, {{"queue", "5"}})->endpoint();
  Completion done[8];
  uint64_t next = 0, seen = 0;
  for (int round = 0; round < 100; ++round) {
    Request requests[4];
    for (uint64_t i = 0; i < 4; ++i) requests[i] = numbered(next + i, uint32_t(i % 2));
    next += endpoint->post(requests, 4);
    const size_t got = endpoint->poll(done, 3);
    for (size_t i = 0; i < got; ++i) CHECK_EQ(done[i].token, seen++);
  }
  CHECK(seen > 250);
}

CASE(faults) {
  auto fabric = make_fabric("null", 0, 2, {{"fault.accept", "8"}});
  REQUIRE(faults_of(*fabric) != nullptr);
  CHECK(faults_of(*make_fabric("null", 0, 2)) == nullptr);
  Faults& faults = *faults_of(*fabric);
  auto endpoint = fabric->endpoint();
  Completion done[16];
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 10; ++i) requests.push_back(numbered(i, uint32_t(i % 2)));

  set_faults(faults,
             {{"fault.accept", "3"}, {"fault.fail_at", "1"}, {"fault.fail_code", "5"}, {"fault.fail_detail", "99"}});
  CHECK_EQ(endpoint->post(requests.data(), 10), size_t(3));
  CHECK_EQ(endpoint->poll(done, 16), size_t(3));
  CHECK(done[0].code == Code::ok && done[1].code == Code::internal && done[2].code == Code::ok);
  CHECK_EQ(done[1].detail, 99ull);

  set_faults(faults,
             {{"fault.fail_peer", "1"}, {"fault.fail_code", "2"}, {"fault.reverse", "1"}, {"fault.accept", "100"}});
  CHECK_EQ(endpoint->post(requests.data(), 4), size_t(4));
  faults.hold = 1;
  CHECK_EQ(endpoint->poll(done, 16), size_t(0));
  faults.hold = 0;
  CHECK_EQ(endpoint->poll(done, 16), size_t(4));
  for (size_t i = 0; i < 4; ++i) CHECK(done[i].code == (done[i].peer == 1 ? Code::remote : Code::ok));
  CHECK_EQ(done[0].token, 2ull);

  set_faults(faults, {{"fault.refuse", "3"}, {"fault.settle_after", "2"}});
  size_t taken = 0;
  for (int i = 0; i < 9; ++i) taken += endpoint->post(requests.data(), 1);
  CHECK_EQ(taken, size_t(3));
  CHECK(!endpoint->settled());
  CHECK(!endpoint->settled());
  CHECK(endpoint->settled());
}

CHECK_MAIN
