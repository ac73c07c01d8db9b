#include "nccl_plugin/words.h"

#include <cstring>

#include "nccl_plugin/message.h"

namespace gin::rma {
namespace {

Address address_of(const void* pointer) { return Address(uintptr_t(pointer)); }

}  // namespace

// Words that the GPU writes and the CPU polls.
struct Words::Memory {
  struct Content {
    alignas(line) uint64_t passed;
    alignas(line) uint64_t read;
  };
  Memory() : content(new (std::align_val_t(page())) Content[page() / sizeof(Content)]()), pinned(content, page()) {}
  ~Memory() { operator delete[](content, std::align_val_t(page())); }
  Content* content;
  Pinned pinned;
};

Words::Words(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
  if (!gpu_) return;
  Gpu::Use use(gpu_.get());
  memory_ = std::make_unique<Memory>();
  lane_ = std::make_unique<Lane>();
}

Words::~Words() {
  if (!gpu_) return;
  Gpu::Use use(gpu_.get());
  lane_.reset();
  memory_.reset();
}

bool Words::add(Region& region, uint64_t offset, uint64_t value, const void* owner) {
  char* word = region.base + offset;
  if (!region.cuda) {
    __atomic_fetch_add(reinterpret_cast<uint64_t*>(word), value, __ATOMIC_RELEASE);
    return true;
  }
  if (region.never_reset) {
    lane_->write64(address_of(word), region.shadow[offset / 8] += value);
    return true;
  }
  if (!reader_) {
    lane_->copy(memory_->pinned.device(&memory_->content->read), address_of(word), 8);
    read_mark_ = mark();
    reader_ = owner;
    return false;
  }
  if (reader_ != owner || passed() < read_mark_) return false;
  lane_->write64(address_of(word), load(&memory_->content->read) + value);
  reader_ = nullptr;
  return true;
}

void Words::forget(const void* owner) {
  if (reader_ == owner) reader_ = nullptr;
}

void Words::write(Region& region, uint64_t offset, const char* bytes, uint64_t count) {
  char* to = region.base + offset;
  if (!region.cuda) {
    std::memcpy(to, bytes, count);
    return;
  }
  if (uintptr_t(to) % 4 || count % 4) {
    lane_->copy(address_of(to), address_of(bytes), count);  // the driver takes the bytes before it returns
    return;
  }
  for (uint64_t at = 0; at < count;) {
    uint64_t value = 0;
    const bool wide = count - at >= 8 && uintptr_t(to + at) % 8 == 0;
    std::memcpy(&value, bytes + at, wide ? 8 : 4);
    if (wide) {
      lane_->write64(address_of(to + at), value);
    } else {
      lane_->write32(address_of(to + at), uint32_t(value));
    }
    at += wide ? 8 : 4;
  }
}

void Words::copy(Region& region, uint64_t offset, Address from, uint64_t bytes, Copy way) {
  lane_->copy(address_of(region.base + offset), from, bytes, way);
}

void Words::mark(Address word, uint64_t value) { lane_->write64(word, value); }

uint64_t Words::mark() {
  lane_->write64(memory_->pinned.device(&memory_->content->passed), ++marked_);
  return marked_;
}

uint64_t Words::passed() const { return memory_ ? load(&memory_->content->passed) : 0; }

void Words::send() {
  if (lane_) lane_->send();
}

void Words::finish(double seconds) {
  if (lane_) drain(*lane_, seconds);
}

}  // namespace gin::rma
