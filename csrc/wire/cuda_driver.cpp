#include "wire/cuda_driver.h"

#include <dlfcn.h>

#include <chrono>
#include <string>
#include <thread>

#include "error.h"

namespace gin::wire::cuda {
namespace {

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function)
    throw Error(Error::Kind::unsupported,
                std::string("NVIDIA's driver has no ") + name + "; CUDA 12 or newer is needed");
}

// CUmemcpyAttributes.
struct CopyAttributes {
  int source_order, source_place[2], target_place[2];
  unsigned flags;
};
constexpr int in_stream_order = 1;
constexpr unsigned beside_kernels = 1;  // a hint: by copy engines

Driver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    throw Error(Error::Kind::unsupported,
                std::string("NVIDIA's driver cannot be loaded: ") + dlerror() + "; use platform=host without a GPU");
  Driver d{};
  find(library, "cuCtxGetCurrent", d.get_context);
  find(library, "cuCtxSetCurrent", d.set_context);
  find(library, "cuCtxGetDevice", d.get_device);
  find(library, "cuDeviceGetUuid_v2", d.get_uuid);
  find(library, "cuStreamCreateWithPriority", d.create_stream);
  find(library, "cuStreamDestroy_v2", d.destroy_stream);
  find(library, "cuStreamQuery", d.query_stream);
  d.exchange_capture_mode =
      reinterpret_cast<decltype(d.exchange_capture_mode)>(dlsym(library, "cuThreadExchangeStreamCaptureMode"));
  find(library, "cuMemcpyAsync", d.copy);
  d.copy_batch = reinterpret_cast<decltype(d.copy_batch)>(dlsym(library, "cuMemcpyBatchAsync_v2"));
  find(library, "cuStreamWriteValue64_v2", d.write64);
  find(library, "cuStreamWriteValue32_v2", d.write32);
  find(library, "cuMemHostAlloc", d.allocate_host);
  find(library, "cuMemFreeHost", d.free_host);
  find(library, "cuGetErrorString", d.describe);
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

void check(int result, const char* what) {
  if (result == success) return;
  const char* text = nullptr;
  driver().describe(result, &text);
  throw Error(Error::Kind::internal,
              std::string(what) + ": CUDA error " + std::to_string(result) + " (" + (text ? text : "unknown") + ")");
}

Context current_context() {
  Context context = nullptr;
  check(driver().get_context(&context), "asking for the CUDA context");
  if (!context)
    throw Error(Error::Kind::config, "this thread has no CUDA context; choose a GPU first (platform=cuda does)");
  return context;
}

int enter(Context context) {
  Context now = nullptr;
  if (driver().get_context(&now) == success && now == context) return success;
  return driver().set_context(context);
}

void ignore_captures() {
  thread_local bool ignored = false;
  if (ignored || !driver().exchange_capture_mode) return;
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  ignored = driver().exchange_capture_mode(&mode) == success;
}

Visit::Visit(Context context) {
  if (driver().get_context(&before_) != success || before_ == context) return;
  changed_ = driver().set_context(context) == success;
}

Visit::~Visit() {
  if (changed_) driver().set_context(before_);
}

std::string current_gpu() {
  int device = 0;
  unsigned char uuid[16];
  check(driver().get_device(&device), "asking for the GPU");
  check(driver().get_uuid(uuid, device), "asking for the GPU's UUID");
  std::string text;
  for (unsigned char byte : uuid) text += "0123456789abcdef"[byte / 16], text += "0123456789abcdef"[byte % 16];
  return text;
}

int copy_all(const Address* to, const Address* from, const size_t* bytes, size_t count, Stream stream) {
  const auto batch = driver().copy_batch;
  if (!batch) return not_supported;
  const CopyAttributes attributes{in_stream_order, {}, {}, beside_kernels};
  const size_t first = 0;
  return batch(to, from, bytes, count, &attributes, &first, 1, stream);
}

UrgentStream::UrgentStream() { check(driver().create_stream(&stream_, non_blocking, urgent), "making a stream"); }

UrgentStream::~UrgentStream() {
  const Visit visit(context_);
  driver().destroy_stream(stream_);
}

bool UrgentStream::drain() const {
  constexpr auto patience = std::chrono::milliseconds(200);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (query() == not_ready) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

void WordWriter::write(uint32_t* word, uint32_t value) {
  const Visit visit(context_);
  driver().write32(stream_.get(), Address(uintptr_t(word)), value, with_barrier);
}

}  // namespace gin::wire::cuda
