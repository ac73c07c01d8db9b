#include "wire/null.h"

#include "wire/completions.h"

namespace gin::wire {
namespace {

class NullEndpoint final : public Endpoint {
 public:
  explicit NullEndpoint(uint64_t queue) : done_(queue) {}

  size_t post(const Request* requests, size_t count) override {
    count = std::min(count, done_.space());
    for (size_t i = 0; i < count; ++i) done_.push({requests[i].token, Code::ok, requests[i].peer, 0});
    return count;
  }

  size_t poll(Completion* completions, size_t count) override { return done_.pop(completions, count); }

  bool settled() override { return true; }

 private:
  CompletionQueue done_;
};

class NullFabric final : public Fabric {
 public:
  NullFabric(uint64_t max_message, uint64_t queue) : max_message_(max_message), queue_(queue) {}

  std::string add_region(uint32_t, void*, uint64_t) override { return "null"; }
  void import_region(uint32_t, uint32_t, const std::string&, void*) override {}
  void remove_region(uint32_t) override {}
  std::unique_ptr<Endpoint> endpoint() override { return std::make_unique<NullEndpoint>(queue_); }
  uint64_t max_message() const override { return max_message_; }

 private:
  uint64_t max_message_, queue_;
};

}  // namespace

std::unique_ptr<Fabric> make_null(uint32_t, uint32_t, const Options& options) {
  return std::make_unique<NullFabric>(option(options, "max_message", default_max_message, 1, most_message),
                                      option(options, "queue", default_queue, 1, most_queue));
}

}  // namespace gin::wire
