#include "nccl_plugin/gpu.h"

#include <dlfcn.h>
#include <sched.h>

#include "error.h"
#include "nccl_plugin/log.h"

namespace gin::rma {
namespace {

using wire::cuda::check;
using wire::cuda::driver;
using wire::cuda::success;

constexpr int posix_descriptor = 1;
constexpr int on_device = 1;
constexpr int read_and_write = 3;
constexpr uint32_t op_write32 = 2, op_write64 = 5;

using AllocationHandle = unsigned long long;

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};

struct Access {
  Location location;
  int rights;
};

// What the wires do not call.
struct MoreDriver {
  int (*retain)(AllocationHandle*, void*);
  int (*release)(AllocationHandle);
  int (*properties)(AllocationProperties*, AllocationHandle);
  int (*export_handle)(void*, AllocationHandle, int type, unsigned long long flags);
  int (*import_handle)(AllocationHandle*, void*, int type);
  int (*reserve)(Address*, size_t bytes, size_t alignment, Address, unsigned long long flags);
  int (*free_range)(Address, size_t);
  int (*map)(Address, size_t, size_t offset, AllocationHandle, unsigned long long flags);
  int (*unmap)(Address, size_t);
  int (*set_access)(Address, size_t, const Access*, size_t count);
  int (*range)(Address* base, size_t* bytes, Address);
  int (*pin)(void*, size_t, unsigned flags);
  int (*unpin)(void*);
  int (*device_address)(Address*, void*, unsigned flags);
  int (*batch)(Stream, unsigned count, void* words, unsigned flags);
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function)
    throw Error(Error::Kind::unsupported,
                std::string("NVIDIA's driver has no ") + name + "; CUDA 12 or newer is needed");
}

MoreDriver load() {
  driver();  // says why when there is none
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  MoreDriver d{};
  find(library, "cuMemRetainAllocationHandle", d.retain);
  find(library, "cuMemRelease", d.release);
  find(library, "cuMemGetAllocationPropertiesFromHandle", d.properties);
  find(library, "cuMemExportToShareableHandle", d.export_handle);
  find(library, "cuMemImportFromShareableHandle", d.import_handle);
  find(library, "cuMemAddressReserve", d.reserve);
  find(library, "cuMemAddressFree", d.free_range);
  find(library, "cuMemMap", d.map);
  find(library, "cuMemUnmap", d.unmap);
  find(library, "cuMemSetAccess", d.set_access);
  find(library, "cuMemGetAddressRange_v2", d.range);
  find(library, "cuMemHostRegister_v2", d.pin);
  find(library, "cuMemHostUnregister", d.unpin);
  find(library, "cuMemHostGetDevicePointer_v2", d.device_address);
  find(library, "cuStreamBatchMemOp_v2", d.batch);
  return d;
}

const MoreDriver& more() {
  static const MoreDriver loaded = load();
  return loaded;
}

// Asked for once: most machines without a GPU have no driver.
bool driver_found() {
  static const bool found = [] {
    try {
      more();
      return true;
    } catch (const Error& error) {
      inform(error.what());
      return false;
    }
  }();
  return found;
}

// The allocation that begins before or at an address, as a descriptor; none when it was not made to be exported.
std::optional<Descriptor> export_allocation(Address address) {
  AllocationHandle handle = 0;
  if (more().retain(&handle, reinterpret_cast<void*>(address)) != success) return std::nullopt;
  AllocationProperties properties{};
  int fd = -1;
  const bool shared = more().properties(&properties, handle) == success &&
                      (properties.handle_types & posix_descriptor) &&
                      more().export_handle(&fd, handle, posix_descriptor, 0) == success;
  more().release(handle);
  if (!shared) return std::nullopt;
  return Descriptor(fd);
}

}  // namespace

Mapping::~Mapping() {
  more().unmap(base_, bytes_);
  more().free_range(base_, bytes_);
}

Pinned::Pinned(void* memory, uint64_t bytes) : memory_(static_cast<char*>(memory)) {
  check(more().pin(memory, bytes, wire::cuda::portable_mapped), "pinning shared memory");
  const int result = more().device_address(&device_, memory, 0);
  if (result != success) more().unpin(memory);
  check(result, "mapping shared memory for the GPU");
}

Pinned::~Pinned() { more().unpin(memory_); }

std::shared_ptr<Gpu> Gpu::current() {
  wire::cuda::Context context = nullptr;
  if (!driver_found() || driver().get_context(&context) != success || !context) return nullptr;
  int device = 0;
  check(driver().get_device(&device), "asking for the GPU");
  return std::shared_ptr<Gpu>(new Gpu(context, device, wire::cuda::current_gpu()));
}

std::optional<Exported> Gpu::share(const void* data, uint64_t bytes) const {
  Exported out;
  const Address begin = Address(uintptr_t(data));
  for (Address at = begin; at < begin + bytes;) {
    Address base = 0;
    size_t length = 0;
    if (more().range(&base, &length, at) != success || length == 0) return std::nullopt;
    auto allocation = export_allocation(base);
    if (!allocation) return std::nullopt;
    if (at == begin) out.offset = begin - base;
    out.bytes.push_back(length);
    out.allocations.push_back(std::move(*allocation));
    at = base + length;
  }
  return out;
}

std::unique_ptr<Mapping> Gpu::map(const Exported& exported) const {
  uint64_t total = 0;
  for (uint64_t bytes : exported.bytes) total += bytes;
  Address base = 0;
  if (more().reserve(&base, total, 0, 0, 0) != success) return nullptr;
  uint64_t mapped = 0;
  bool good = true;
  for (size_t i = 0; good && i < exported.allocations.size(); ++i) {
    AllocationHandle handle = 0;
    void* fd = reinterpret_cast<void*>(intptr_t(exported.allocations[i].get()));
    good = more().import_handle(&handle, fd, posix_descriptor) == success;
    if (!good) break;
    good = more().map(base + mapped, exported.bytes[i], 0, handle, 0) == success;
    more().release(handle);  // the mapping holds it
    if (good) mapped += exported.bytes[i];
  }
  const Access access{{on_device, device_}, read_and_write};
  if (good && more().set_access(base, total, &access, 1) == success)
    return std::make_unique<Mapping>(base, total, exported.offset);
  if (mapped) more().unmap(base, mapped);
  more().free_range(base, total);
  return nullptr;
}

void Lane::copy(Address to, Address from, uint64_t bytes, Copy way) {
  send();
  const int result =
      way == Copy::within ? detour_.copy(to, from, bytes) : driver().copy(to, from, bytes, stream_.get());
  check(result, "copying");
}

void Lane::write64(Address to, uint64_t value) { add(op_write64, to, value); }
void Lane::write32(Address to, uint32_t value) { add(op_write32, to, value); }

void Lane::add(uint32_t operation, Address address, uint64_t value) {
  if (count_ == most_words) send();
  words_[count_++] = {operation, address, value, wire::cuda::with_barrier, 0, 0};
}

void Lane::send() {
  if (count_ == 0) return;
  const unsigned count = unsigned(count_);
  count_ = 0;
  check(more().batch(stream_.get(), count, words_.data(), 0), "writing words");
}

bool Lane::idle() {
  const int result = stream_.query();
  if (result == wire::cuda::not_ready) return false;
  check(result, "asking a stream");
  return true;
}

void drain(Lane& lane, double seconds) {
  const Deadline deadline(seconds);
  try {
    lane.send();
    while (!lane.idle() && !deadline.passed()) sched_yield();
  } catch (const Error&) {  // the GPU is lost; nothing is left to wait for
  }
}

}  // namespace gin::rma
