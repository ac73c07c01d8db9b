// As much of NVIDIA's driver as the RMA plugin calls, on host memory: allocations that can be exported or not, streams that
// run late and in threads of their own, and refusals where a GPU would fault. Not a model of speed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int success = 0, invalid = 1, would_wait = 999, not_ready = 600, illegal_address = 700, already_pinned = 712,
              not_pinned = 713, unsupported = 801;
constexpr uint64_t granule = 2 << 20;

struct Range {
  uint64_t bytes;
  int fd;  // of an allocation or a mapping of one; -1 for pinned memory
  bool exportable;
  int gpu = 0;  // that has it
};

std::mutex mutex;
// By address. Never destroyed, so that leak checkers do not take what a wire has left to the GPU for lost: fake_pinned counts.
std::map<uint64_t, Range>&device = *new std::map<uint64_t, Range>, &pinned = *new std::map<uint64_t, Range>;
std::atomic<int> live_streams{0}, under_way{0}, live_mappings{0}, live_pins{0}, word_writes{0}, running{0}, broken{0},
    failing_words{0}, batches{0}, batched{INT_MAX}, copies{0}, copies_left{INT_MAX};
std::atomic<void*> held_back{nullptr};
thread_local void* context = nullptr;

const Range* within(const std::map<uint64_t, Range>& ranges, uint64_t address, uint64_t bytes,
                    uint64_t* base = nullptr) {
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return nullptr;
  --found;
  if (address + bytes > found->first + found->second.bytes) return nullptr;
  if (base) *base = found->first;
  return &found->second;
}

// The GPU that has both, -1 for none.
int gpu_of(uint64_t to, uint64_t from) {
  std::lock_guard<std::mutex> held(mutex);
  const Range *target = within(device, to, 1), *source = within(device, from, 1);
  return target && source && target->gpu == source->gpu ? target->gpu : -1;
}

bool reached(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> held(mutex);
  return within(device, address, bytes) || within(pinned, address, bytes);
}

struct Stream {
  Stream() : worker([this] { run(); }) { ++live_streams; }
  // Does not wait for what is in it, which goes on.
  void destroy() {
    --live_streams;
    worker.detach();
    std::lock_guard<std::mutex> held(guard);
    ending = true;
    wake.notify_one();
  }
  void put(std::function<void()> work) {
    ++under_way;
    {
      std::lock_guard<std::mutex> held(guard);
      queue.push_back(std::move(work));
    }
    wake.notify_one();
  }
  bool idle() {
    std::lock_guard<std::mutex> held(guard);
    return queue.empty();
  }
  void run() {
    std::mt19937 random(uint32_t(uintptr_t(this) >> 4));
    std::unique_lock<std::mutex> held(guard);
    for (;;) {
      wake.wait(held, [this] { return ending || !queue.empty(); });
      if (queue.empty()) break;
      auto work = queue.front();
      held.unlock();
      if (random() % 8 == 0) usleep(random() % 200);
      work();
      --under_way;
      held.lock();
      queue.pop_front();
    }
    held.unlock();
    delete this;
  }
  std::mutex guard;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;
  bool ending = false;
  void* const owner = context;
  std::thread worker;
};

Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }
void* at(uint64_t address) { return reinterpret_cast<void*>(uintptr_t(address)); }

// An aligned word arrives whole, whoever writes it at the same time. Within a GPU it is a kernel that copies, for which those
// that run leave no room.
void move(uint64_t to, uint64_t from, uint64_t bytes) {
  while (held_back == at(to)) usleep(100);
  if (gpu_of(to, from) >= 0)
    while (running > 0) usleep(100);
  if (bytes == 8 && to % 8 == 0 && from % 8 == 0)
    __atomic_store_n(static_cast<uint64_t*>(at(to)),
                     __atomic_load_n(static_cast<uint64_t*>(at(from)), __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
  else
    std::memcpy(at(to), at(from), bytes);
}

int write_word(void* stream, uint64_t to, uint64_t value, uint64_t bytes) {
  ++word_writes;
  if (broken) return broken;
  if (context != stream_of(stream).owner) return invalid;
  if (bytes == 8 && failing_words > 0) return --failing_words, unsupported;
  if (to % bytes || !reached(to, bytes)) return illegal_address;
  stream_of(stream).put([=] {
    if (bytes == 8)
      __atomic_store_n(static_cast<uint64_t*>(at(to)), value, __ATOMIC_RELEASE);
    else
      __atomic_store_n(static_cast<uint32_t*>(at(to)), uint32_t(value), __ATOMIC_RELEASE);
  });
  return success;
}

// "/memfd:1 (deleted)".
int gpu_of_file(int fd) {
  char name[64] = {};
  const ssize_t got = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof(name) - 1);
  return got > 0 ? atoi(std::strchr(name, ':') + 1) : -1;
}

struct Word {
  uint32_t operation;
  uint64_t address, value;
  uint32_t flags;
  uint64_t alias, unused;
};

struct Attributes {
  int source_order, places[4];
  unsigned flags;
};

struct Properties {
  int type, handle_types, location[2];
  void* win32;
  unsigned char flags[8];
};

}  // namespace

// For tests: memory of the thread's GPU, which its file is named after, and what is still held.
API void* fake_allocate(uint64_t bytes, int exportable) {
  bytes = (bytes + granule - 1) / granule * granule;
  const int gpu = int(uintptr_t(context)) - 1;
  const int fd = memfd_create(std::to_string(gpu).c_str(), MFD_CLOEXEC);
  if (ftruncate(fd, off_t(bytes)) != 0) return nullptr;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::lock_guard<std::mutex> held(mutex);
  device[uint64_t(uintptr_t(memory))] = {bytes, fd, exportable != 0, gpu};
  return memory;
}
// The memory is another GPU's.
API void fake_place(void* memory, int gpu) {
  std::lock_guard<std::mutex> held(mutex);
  device.find(uint64_t(uintptr_t(memory)))->second.gpu = gpu;
}
// Waits, as the driver does, for what may reach the memory.
API void fake_free(void* memory) {
  for (int waited = 0; under_way > 0; ++waited) {
    if (waited == 200000) abort();  // 20 s: what is under way does not end
    usleep(100);
  }
  std::lock_guard<std::mutex> held(mutex);
  auto found = device.find(uint64_t(uintptr_t(memory)));
  munmap(memory, found->second.bytes);
  close(found->second.fd);
  device.erase(found);
}
// While kernels run that wait for others, nothing is made, as a driver can wait for them then, and they have every
// multiprocessor.
API void fake_run(int kernels) { running += kernels; }
// Copies to that address, and what is behind them in their streams, wait until another is given.
API void fake_hold(void* target) { held_back = target; }
// The device is lost: whatever is asked of it fails with that error, until it is 0.
API void fake_break(int error) { broken = error; }
// So many writes of words of 8 bytes by streams fail.
API void fake_fail_words(int count) { failing_words = count; }
API int fake_streams() { return live_streams; }
API int fake_live() { return live_streams + live_mappings + live_pins; }
// Batches end after so many copies, with an error; less than none: there are no batches.
API void fake_cut_batches(int after) { batched = after; }
// The copy after so many others is refused.
API void fake_refuse_copy(int after) { copies_left = after; }
API int fake_pinned() {  // pieces of host memory that the driver has given
  std::lock_guard<std::mutex> held(mutex);
  return int(pinned.size());
}
API int fake_batches() { return batches; }          // of copies that streams were given
API int fake_copies() { return copies; }            // that streams were given one by one
API int fake_word_writes() { return word_writes; }  // that streams were given

API int cuCtxGetCurrent(void** out) { return *out = context, success; }
API int cuCtxSetCurrent(void* given) {
  if (broken) return broken;
  return context = given, success;
}
API int cuCtxGetDevice(int* out) { return *out = int(uintptr_t(context)) - 1, success; }
API int cuDeviceGetUuid_v2(unsigned char out[16], int device) {
  std::memset(out, 0, 16);
  return out[15] = uint8_t(device), success;
}
API int cuGetErrorString(int, const char** text) { return *text = "fake", success; }
API int cuStreamCreateWithPriority(void** out, unsigned, int) {
  if (!context) return invalid;
  if (running) return would_wait;
  *out = new Stream;
  return success;
}
API int cuStreamDestroy_v2(void* stream) { return stream_of(stream).destroy(), success; }
API int cuStreamQuery(void* stream) {
  if (broken) return broken;
  return stream_of(stream).idle() ? success : not_ready;
}
API int cuStreamSynchronize(void* stream) {
  while (!stream_of(stream).idle()) usleep(10);
  return success;
}
API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  ++copies;
  if (!context) return invalid;
  if (broken) return broken;
  if (--copies_left == -1) return invalid;
  if (reached(from, bytes) && reached(to, bytes)) {
    stream_of(stream).put([=] { move(to, from, bytes); });
  } else if (reached(to, bytes)) {  // from memory that is not pinned: taken at once
    auto staged = std::make_shared<std::string>(static_cast<char*>(at(from)), bytes);
    stream_of(stream).put([=] { std::memcpy(at(to), staged->data(), bytes); });
  } else if (reached(from, bytes)) {
    stream_of(stream).put([=] { std::memcpy(at(to), at(from), bytes); });
    cuStreamSynchronize(stream);
  } else {
    return illegal_address;
  }
  return success;
}
// As the driver is free to: back to front, and not one after the other's bytes.
API int cuMemcpyBatchAsync_v2(const uint64_t* to, const uint64_t* from, const size_t* bytes, size_t count,
                              const Attributes* attributes, const size_t* first, size_t kinds, void* stream) {
  if (!context || count == 0 || kinds != 1 || *first != 0 || attributes->source_order != 1) return invalid;
  if (attributes->flags != 1) return invalid;  // beside kernels
  if (broken) return broken;
  if (batched < 0) return unsupported;
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] == 0) return invalid;
    if (!reached(from[i], bytes[i]) || !reached(to[i], bytes[i])) return illegal_address;
  }
  ++batches;
  std::vector<std::array<uint64_t, 3>> all;
  for (size_t i = count; i-- > 0 && all.size() < size_t(batched);) all.push_back({to[i], from[i], bytes[i]});
  stream_of(stream).put([=] {
    for (const auto& [target, source, size] : all) move(target, source, size);
  });
  return all.size() == count ? success : invalid;
}
API int cuStreamWriteValue64_v2(void* stream, uint64_t to, uint64_t value, unsigned) {
  return write_word(stream, to, value, 8);
}
API int cuStreamWriteValue32_v2(void* stream, uint64_t to, uint32_t value, unsigned) {
  return write_word(stream, to, value, 4);
}
API int cuStreamBatchMemOp_v2(void* stream, unsigned count, Word* words, unsigned) {
  for (unsigned i = 0; i < count; ++i) {
    if (words[i].operation != 2 && words[i].operation != 5) return invalid;
    const int result = write_word(stream, words[i].address, words[i].value, words[i].operation == 5 ? 8 : 4);
    if (result) return result;
  }
  return success;
}
API int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  if (running) return would_wait;
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  *out = aligned_alloc(page, (bytes + page - 1) / page * page);
  std::lock_guard<std::mutex> held(mutex);
  pinned[uint64_t(uintptr_t(*out))] = {bytes, -1, false};
  return success;
}
API int cuMemFreeHost(void* memory) {
  std::lock_guard<std::mutex> held(mutex);
  const auto found = pinned.find(uint64_t(uintptr_t(memory)));
  std::memset(memory, 0xdd, found->second.bytes);
  pinned.erase(found);
  free(memory);
  return success;
}
API int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  if (running) return would_wait;
  if (bytes % uint64_t(sysconf(_SC_PAGESIZE))) return invalid;  // what shares its last page could not be pinned
  std::lock_guard<std::mutex> held(mutex);
  const uint64_t begin = uint64_t(uintptr_t(memory));
  for (auto& [base, range] : pinned)
    if (begin < base + range.bytes && base < begin + bytes) return already_pinned;
  pinned[begin] = {bytes, -1, false};
  ++live_pins;
  return success;
}
API int cuMemHostUnregister(void* memory) {
  std::lock_guard<std::mutex> held(mutex);
  if (!pinned.erase(uint64_t(uintptr_t(memory)))) return not_pinned;
  --live_pins;
  return success;
}
API int cuMemHostGetDevicePointer_v2(uint64_t* out, void* memory, unsigned) {
  return *out = uint64_t(uintptr_t(memory)), success;
}
API int cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) {
  std::lock_guard<std::mutex> held(mutex);
  const Range* found = within(device, address, 1, base);
  if (!found) return invalid;
  *bytes = found->bytes;
  return success;
}
// A handle is a descriptor and one bit.
API int cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
  std::lock_guard<std::mutex> held(mutex);
  const Range* found = within(device, uint64_t(uintptr_t(address)), 1);
  if (!found) return invalid;
  *handle = uint64_t(dup(found->fd)) * 2 + found->exportable;
  return success;
}
API int cuMemRelease(unsigned long long handle) { return close(int(handle / 2)), success; }
API int cuMemGetAllocationPropertiesFromHandle(Properties* out, unsigned long long handle) {
  return out->handle_types = int(handle % 2), success;
}
API int cuMemExportToShareableHandle(int* out, unsigned long long handle, int, unsigned long long) {
  if (handle % 2 == 0) return invalid;
  return *out = fcntl(int(handle / 2), F_DUPFD_CLOEXEC, 0), success;
}
API int cuMemImportFromShareableHandle(unsigned long long* handle, void* descriptor, int) {
  if (getenv("FAKE_NO_IMPORT")) return invalid;
  const int fd = dup(int(intptr_t(descriptor)));
  if (fd < 0) return invalid;
  *handle = uint64_t(fd) * 2 + 1;
  return success;
}
API int cuMemAddressReserve(uint64_t* out, size_t bytes, size_t, uint64_t, unsigned long long) {
  *out = uint64_t(uintptr_t(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
  ++live_mappings;
  return success;
}
API int cuMemAddressFree(uint64_t base, size_t bytes) {
  munmap(at(base), bytes);
  --live_mappings;
  return success;
}
API int cuMemMap(uint64_t base, size_t bytes, size_t offset, unsigned long long handle, unsigned long long) {
  const int fd = dup(int(handle / 2));
  mmap(at(base), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, off_t(offset));
  std::lock_guard<std::mutex> held(mutex);
  device[base] = {bytes, fd, false, gpu_of_file(fd)};
  return success;
}
API int cuMemUnmap(uint64_t base, size_t bytes) {
  std::lock_guard<std::mutex> held(mutex);
  for (auto range = device.lower_bound(base); range != device.end() && range->first < base + bytes;) {
    close(range->second.fd);
    range = device.erase(range);
  }
  return success;
}
API int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return success; }

// Memory of the test's that is a GPU's from now on, or no more.
API void fake_own(void* memory, size_t bytes) {
  std::lock_guard<std::mutex> held(mutex);
  const uint64_t base = uint64_t(uintptr_t(memory));
  if (bytes)
    device[base] = {bytes, -1, false};
  else
    device.erase(base);
}
API int cuPointerGetAttribute(void* value, int which, uint64_t address) {
  std::lock_guard<std::mutex> held(mutex);
  if (which != 2 || !within(device, address, 1)) return invalid;
  return *static_cast<unsigned*>(value) = 2, success;  // device memory
}
API int cuMemGetHandleForAddressRange(void* handle, uint64_t, size_t, int, unsigned long long) {
  return *static_cast<int*>(handle) = open("/dev/null", O_RDONLY | O_CLOEXEC), success;
}
