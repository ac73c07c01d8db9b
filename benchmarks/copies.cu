// How a program learns that copies to another GPU have ended, and what that costs: the choices of the wire cuda.
//
//     nvcc -O2 -std=c++17 -o copies benchmarks/copies.cu -lcuda && ./copies
//
// GPU 0 copies to GPU 1. So many lanes, each with so many copies under way at most, go by one stream or one each. The end of
// copies is a word that the stream writes, an event, or 8 bytes copied to the host; after each copy, or one mark under way
// at a time, which covers the copies before it. "none" waits for all at the end only, whatever the window. Where it says
// "batches", copies that may start together, up to 16, are one call (CUDA 13). Prints JSON: GB/s (1e9 bytes/s) by way,
// medians of three.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace {

enum class Mark { word, event, copy, none };

struct Way {
  size_t bytes;
  int lanes, streams;
  uint64_t window;  // copies of a lane under way at most
  Mark mark;
  bool each;
  bool batches = false;
};

constexpr size_t room = 1u << 30;  // bytes on each GPU
constexpr uint64_t most_marks = 1 << 16;
constexpr uint64_t places = 16;  // of a lane, which it copies from and to in turn
constexpr uint64_t most_together = 16;

void check(int result, const char* what) {
  if (result == 0) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, result);
  std::exit(1);
}
#define CHECK(call) check(int(call), #call)

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Gpus {
  CUdeviceptr from = 0, to = 0;
  CUdeviceptr numbers = 0;    // 0, 1, 2, ... on GPU 0
  uint64_t* words = nullptr;  // in pinned memory
  std::vector<cudaStream_t> streams{4};

  Gpus() {
    void *source = nullptr, *target = nullptr, *count = nullptr;
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&target, room));
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&source, room));
    CHECK(cudaDeviceEnablePeerAccess(1, 0));
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&words), 4096, cudaHostAllocPortable | cudaHostAllocMapped));
    std::vector<uint64_t> all(most_marks);
    for (uint64_t i = 0; i < most_marks; ++i) all[i] = i;
    CHECK(cudaMalloc(&count, 8 * most_marks));
    CHECK(cudaMemcpy(count, all.data(), 8 * most_marks, cudaMemcpyHostToDevice));
    int least = 0, greatest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (cudaStream_t& stream : streams) CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    from = CUdeviceptr(source), to = CUdeviceptr(target), numbers = CUdeviceptr(count);
  }
};

// Copies from one GPU to the other, at equal places.
class Batch {
 public:
  Batch(const Gpus& gpus, size_t bytes, CUstream stream) : gpus_(gpus), bytes_(bytes), stream_(stream) {}

  void add(CUdeviceptr at) { to_.push_back(gpus_.to + at), from_.push_back(gpus_.from + at); }
  bool full() const { return to_.size() == most_together; }

  void start() {
    if (to_.size() == 1) CHECK(cuMemcpyAsync(to_[0], from_[0], bytes_, stream_));
    if (to_.size() > 1) start_all();
    to_.clear(), from_.clear();
  }

 private:
  void start_all() {
    std::vector<size_t> sizes(to_.size(), bytes_);
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;  // as the wire has it
    size_t first = 0;
    CHECK(cuMemcpyBatchAsync(to_.data(), from_.data(), sizes.data(), to_.size(), &attributes, &first, 1, stream_));
  }

  const Gpus& gpus_;
  const size_t bytes_;
  const CUstream stream_;
  std::vector<CUdeviceptr> to_, from_;
};

class Lane {
 public:
  Lane(const Gpus& gpus, const Way& way, int number)
      : gpus_(gpus),
        way_(way),
        stream_(gpus.streams[size_t(number % way.streams)]),
        batch_(gpus, way.bytes, stream_),
        word_(gpus.words + 8 * number),
        first_(uint64_t(number) * places) {
    CHECK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
  ~Lane() { cuEventDestroy(event_); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Starts what may be under way of `count` copies in all, and sees what has ended. Returns whether all have.
  bool turn(uint64_t count) {
    while (sequence_.size() < count && sequence_.size() - ended_ < way_.window) {
      batch_.add((first_ + sequence_.size() % places) * way_.bytes);
      if (!way_.batches || batch_.full()) batch_.start();
      unmarked_ = true;
      sequence_.push_back(marked_ + 1);
      if (way_.each) mark();
    }
    batch_.start();
    mark();
    const uint64_t passed = see();
    while (ended_ < sequence_.size() && sequence_[ended_] <= passed) ++ended_;
    mark();
    return ended_ == count;
  }

 private:
  bool under_way() const { return way_.mark == Mark::event ? recorded_ : load() != marked_; }
  uint64_t load() const { return __atomic_load_n(word_, __ATOMIC_ACQUIRE); }

  void mark() {
    if (!unmarked_ || (!way_.each && under_way())) return;
    unmarked_ = false;
    ++marked_;
    if (way_.mark == Mark::word) CHECK(cuStreamWriteValue64(stream_, CUdeviceptr(word_), marked_, 0));
    if (way_.mark == Mark::copy) CHECK(cuMemcpyAsync(CUdeviceptr(word_), gpus_.numbers + 8 * marked_, 8, stream_));
    if (way_.mark == Mark::event) CHECK(cuEventRecord(event_, stream_)), recorded_ = true;
  }

  // The last mark that has been passed.
  uint64_t see() {
    if (way_.mark != Mark::event) return load();
    if (recorded_) {
      const CUresult result = cuEventQuery(event_);
      if (result != CUDA_ERROR_NOT_READY) CHECK(result);
      recorded_ = result == CUDA_ERROR_NOT_READY;
    }
    return recorded_ ? seen_ : seen_ = marked_;
  }

  const Gpus& gpus_;
  const Way way_;
  const CUstream stream_;
  Batch batch_;
  uint64_t* const word_;
  const uint64_t first_;
  CUevent event_ = nullptr;
  bool recorded_ = false, unmarked_ = false;
  uint64_t marked_ = 0, seen_ = 0, ended_ = 0;
  std::vector<uint64_t> sequence_;  // by copy: the mark that covers it
};

double rate(const Gpus& gpus, const Way& way) {
  const uint64_t count = way.bytes >= (8u << 20) ? 64 : 512, each = count / uint64_t(way.lanes);
  std::memset(gpus.words, 0, 4096);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < way.lanes; ++i) lanes.push_back(std::make_unique<Lane>(gpus, way, i));
  const double start = now();
  if (way.mark == Mark::none) {
    std::vector<Batch> batches;
    for (int i = 0; i < way.lanes; ++i) batches.emplace_back(gpus, way.bytes, gpus.streams[size_t(i % way.streams)]);
    for (uint64_t i = 0; i < count; ++i) {
      Batch& batch = batches[i % uint64_t(way.lanes)];
      batch.add(i % places * way.bytes);
      if (!way.batches || batch.full() || i + uint64_t(way.lanes) >= count) batch.start();
    }
    CHECK(cudaDeviceSynchronize());
  } else {
    for (bool all = false; !all;) {
      all = true;
      for (const auto& lane : lanes) all &= lane->turn(each);
    }
  }
  const double seconds = now() - start;
  CHECK(cudaDeviceSynchronize());
  return double(way.bytes * count) / seconds / 1e9;
}

void measure(const Gpus& gpus, const Way& way) {
  double rates[3];
  for (double& one : rates) one = rate(gpus, way);
  std::sort(rates, rates + 3);
  const char* names[] = {"word", "event", "copy", "none"};
  static const char* before = "{\n";
  std::printf("%s \"%zu KiB, %d lanes, %d streams, window %lu, %s%s%s\": %.1f", before, way.bytes >> 10, way.lanes,
              way.streams, way.window, names[int(way.mark)],
              way.mark == Mark::none ? ""
              : way.each             ? " each"
                                     : " one",
              way.batches ? ", batches" : "", rates[1]);
  before = ",\n";
}

}  // namespace

int main() {
  int gpus_there = 0;
  if (cudaGetDeviceCount(&gpus_there) != cudaSuccess || gpus_there < 2) {
    std::fprintf(stderr, "copies needs two GPUs; this process sees %d\n", gpus_there);
    return 3;
  }
  const Gpus gpus;
  for (size_t bytes : {size_t(64) << 10, size_t(1) << 20, size_t(16) << 20})
    for (auto [lanes, streams] : {std::pair{1, 1}, {4, 1}, {4, 4}}) {
      for (uint64_t window : {1, 8})
        for (Mark mark : {Mark::word, Mark::event, Mark::copy, Mark::none})
          for (bool each : {false, true})  // an event is recorded anew: it tells of one mark at a time
            if (!each || mark == Mark::word || mark == Mark::copy)
              measure(gpus, {bytes, lanes, streams, window, mark, each});
      for (uint64_t window : {8, 16}) measure(gpus, {bytes, lanes, streams, window, Mark::word, false, true});
      measure(gpus, {bytes, lanes, streams, most_together, Mark::none, false, true});
    }
  std::printf("\n}\n");
}
