// How the verbs wire registers memory, with a library and a driver that are not the real ones: what they are asked for, and
// what is said where they refuse.
#if !__has_include(<infiniband/verbs.h>)
#include <cstdio>
int main() { std::puts("skip: built without infiniband/verbs.h"); }
#else
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "check.h"
#include "wire/verbs/registration.h"

using namespace gin::wire;
using namespace gin::wire::verbs;

namespace {

constexpr uint64_t gpu_first = 0x7f0000200000, gpu_end = 0x7f0000400000;  // what the driver calls its own
constexpr unsigned relaxed_flag = IBV_ACCESS_RELAXED_ORDERING;

struct Asked {
  uint64_t address = 0, bytes = 0, offset = 0;
  unsigned access = 0;
  int fd = -1;
};

Asked range, dmabuf, plain, iova;
ibv_mr made[3];  // by a dma-buf, by address, by address and relaxed
int range_error, dmabuf_error, plain_error, exported = -1;

int attribute(void* value, int which, cuda::Address address) {
  if (which != 2 || address < gpu_first || address >= gpu_end) return 1;
  *static_cast<unsigned*>(value) = 2;
  return 0;
}

int range_handle(void* handle, cuda::Address address, size_t bytes, int kind, unsigned long long flags) {
  range = {address, bytes, 0, unsigned(flags), kind};
  if (range_error) return range_error;
  *static_cast<int*>(handle) = exported = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return 0;
}

int describe(int error, const char** text) {
  *text = error == 801 ? "operation not supported" : "something else";
  return 0;
}

ibv_mr* failing(int error, ibv_mr* region) {
  errno = error;
  return error ? nullptr : region;
}

ibv_mr* reg_mr(ibv_pd*, void* address, size_t bytes, int access) {
  plain = {uintptr_t(address), bytes, 0, unsigned(access), -1};
  return failing(plain_error, &made[1]);
}

ibv_mr* reg_mr_iova2(ibv_pd*, void* address, size_t bytes, uint64_t target, unsigned access) {
  iova = {target, bytes, uint64_t(uintptr_t(address)) - target, access, -1};
  return failing(plain_error, &made[2]);
}

ibv_mr* reg_dmabuf_mr(ibv_pd*, uint64_t offset, size_t bytes, uint64_t address, int fd, int access) {
  dmabuf = {address, bytes, offset, unsigned(access), fd};
  return failing(dmabuf_error, &made[0]);
}

const cuda::MemoryApi driver{attribute, range_handle, describe};

Library library(bool with_dmabuf = true) {
  range = dmabuf = plain = iova = {};
  range_error = dmabuf_error = plain_error = 0;
  exported = -1;
  Library l{};
  l.reg_mr = reg_mr;
  l.reg_mr_iova2 = reg_mr_iova2;
  if (with_dmabuf) l.reg_dmabuf_mr = reg_dmabuf_mr;
  return l;
}

Registered add(const Library& l, uint64_t address, uint64_t bytes, bool relaxed = false,
               const cuda::MemoryApi* gpu = &driver) {
  return register_memory(l, gpu, nullptr, reinterpret_cast<void*>(uintptr_t(address)), bytes, relaxed);
}

bool is_closed(int fd) { return fcntl(fd, F_GETFD) == -1 && errno == EBADF; }

}  // namespace

CASE(host_memory_goes_by_its_address) {
  const Library l = library();
  CHECK(add(l, 0x1008, 24).region == &made[1]);
  CHECK(!add(l, 0x1008, 24).of_gpu);
  CHECK_EQ(plain.address, 0x1008ull);
  CHECK_EQ(plain.bytes, 24ull);
  CHECK(!(plain.access & relaxed_flag));
  CHECK(add(l, 0x1008, 24, true).region == &made[2]);
  CHECK_EQ(iova.address, 0x1008ull);
  CHECK_EQ(iova.offset, 0ull);
  CHECK(iova.access & relaxed_flag);
  CHECK_EQ(range.bytes + dmabuf.bytes, 0ull);
}

CASE(without_a_driver_no_memory_is_a_gpu_s) {
  const Library l = library();
  CHECK(add(l, gpu_first, 4096, false, nullptr).region == &made[1]);
  CHECK_EQ(range.bytes, 0ull);
}

CASE(a_gpu_s_memory_goes_by_a_dma_buf_of_whole_pages) {
  const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  struct {
    uint64_t offset, bytes, pages;
  } cases[] = {{0, page, 1},     {0, 8, 1},         {256, page, 2},
               {page - 8, 8, 1}, {page - 8, 16, 2}, {3 * page + 512, 9 * page, 10}};
  for (const auto& c : cases) {
    for (bool relaxed : {false, true}) {
      const Library l = library();
      const Registered done = add(l, gpu_first + c.offset, c.bytes, relaxed);
      CHECK(done.region == &made[0]);
      CHECK(done.of_gpu);
      CHECK_EQ(done.note, std::string());
      CHECK_EQ(range.address, gpu_first + c.offset / page * page);
      CHECK_EQ(range.bytes, c.pages * page);
      CHECK_EQ(range.fd, 1);  // a dma-buf is asked for
      CHECK_EQ(dmabuf.offset, c.offset % page);
      CHECK_EQ(dmabuf.address, gpu_first + c.offset);
      CHECK_EQ(dmabuf.bytes, c.bytes);
      CHECK_EQ(bool(dmabuf.access & relaxed_flag), relaxed);
      CHECK_EQ(dmabuf.fd, exported);
      CHECK(is_closed(exported));
      CHECK_EQ(plain.bytes + iova.bytes, 0ull);
    }
  }
}

CASE(what_gives_no_dma_buf_goes_by_its_address_and_says_so) {
  {
    const Library l = library(false);
    const Registered done = add(l, gpu_first, 4096);
    CHECK(done.region == &made[1]);
    CHECK_CONTAINS(done.note, "by nvidia-peermem");
    CHECK_CONTAINS(done.note, "rdma-core 34");
    CHECK_EQ(exported, -1);
  }
  {
    const Library l = library();
    range_error = 801;
    const Registered done = add(l, gpu_first, 4096, true);
    CHECK(done.region == &made[2]);
    CHECK_CONTAINS(done.note, "CUDA error 801 (operation not supported)");
  }
  {
    const Library l = library();
    dmabuf_error = EOPNOTSUPP;
    const Registered done = add(l, gpu_first, 4096);
    CHECK(done.region == &made[1]);
    CHECK_CONTAINS(done.note, "ibv_reg_dmabuf_mr: Operation not supported");
    CHECK(is_closed(exported));
  }
  {
    cuda::MemoryApi old = driver;
    old.range_handle = nullptr;
    const Registered done = add(library(), gpu_first, 4096, false, &old);
    CHECK(done.region == &made[1]);
    CHECK_CONTAINS(done.note, "CUDA 11.7");
  }
}

CASE(where_neither_works_both_reasons_and_the_remedy_are_said) {
  const Library l = library();
  dmabuf_error = EOPNOTSUPP;
  plain_error = EFAULT;
  const Registered done = add(l, gpu_first, 4096);
  CHECK(!done.region);
  CHECK_EQ(done.error, EFAULT);
  for (const char* part : {"GPU's memory", "Operation not supported", "Bad address", "modprobe nvidia-peermem"})
    CHECK_CONTAINS(done.note, part);
  CHECK(is_closed(exported));
}

CASE(host_memory_that_is_refused_has_its_errno) {
  const Library l = library();
  plain_error = ENOMEM;
  const Registered done = add(l, 0x1000, 4096);
  CHECK(!done.region);
  CHECK_EQ(done.error, ENOMEM);
  CHECK_EQ(done.note, std::string());
}

CHECK_MAIN
#endif
