#include "wire/faulty.h"

#include <algorithm>
#include <deque>

#include "error.h"

namespace gin::wire {
namespace {

constexpr const char* prefix = "fault.";

struct Field {
  const char* name;
  std::atomic<uint64_t> Faults::* value;
};

constexpr Field fields[] = {
    {"fail_at", &Faults::fail_at},         {"fail_peer", &Faults::fail_peer}, {"fail_code", &Faults::fail_code},
    {"fail_detail", &Faults::fail_detail}, {"accept", &Faults::accept},       {"refuse", &Faults::refuse},
    {"reverse", &Faults::reverse},         {"hold", &Faults::hold},           {"settle_after", &Faults::settle_after},
    {"overtake", &Faults::overtake},
};

class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, Faults& faults) : inner_(std::move(inner)), faults_(faults) {}

  size_t post(const Request* requests, size_t count) override {
    ++posts_;
    uint64_t refuse = faults_.refuse;
    if (refuse != Faults::off && refuse > 1 && posts_ % refuse != 0) return 0;
    count = size_t(std::min<uint64_t>(count, faults_.accept));
    for (size_t i = 0; i < count; ++i)
      if (!post_one(requests[i])) return i;
    return count;
  }

  size_t poll(Completion* completions, size_t count) override {
    if (faults_.hold) return 0;
    size_t got = 0;
    while (got < count && !failed_.empty()) {
      completions[got++] = failed_.front();
      failed_.pop_front();
    }
    if (!held_.empty() && (patience_ == 0 || --patience_ == 0)) release(1);
    size_t own = got;
    got += inner_->poll(completions + got, count - got);
    for (size_t i = own; i < got; ++i)
      if (polled_++ == faults_.fail_at) completions[i] = failure(completions[i].token, completions[i].peer);
    if (faults_.reverse) std::reverse(completions, completions + got);
    return got;
  }

  bool settled() override {
    uint64_t left = faults_.settle_after;
    if (left == 0) return inner_->settled();
    faults_.settle_after = left - 1;
    return false;
  }

  void abandon(uint32_t peer) override { inner_->abandon(peer); }

 private:
  bool post_one(const Request& request) {
    if (request.verb != Verb::fence && request.peer == faults_.fail_peer) {
      failed_.push_back(failure(request.token, request.peer));
      return true;
    }
    if (faults_.overtake && !request.ordered && request.verb != Verb::fence) {
      if (held_.size() == most_held) return inner_->post(&request, 1) == 1;
      if (held_.empty()) patience_ = faults_.overtake;
      held_.push_back(request);
      return true;
    }
    return release(most_held) && inner_->post(&request, 1) == 1;
  }

  // Passes on some of what was held back, the last first. Whether nothing is left.
  bool release(size_t most) {
    while (most-- > 0 && !held_.empty() && inner_->post(&held_.back(), 1) == 1) held_.pop_back();
    return held_.empty();
  }

  Completion failure(uint64_t token, uint32_t peer) const {
    return {token, Code(uint32_t(faults_.fail_code)), peer, faults_.fail_detail};
  }

  std::unique_ptr<Endpoint> inner_;
  Faults& faults_;
  std::deque<Completion> failed_;
  static constexpr size_t most_held = 256;
  std::deque<Request> held_;
  uint64_t patience_ = 0;
  uint64_t posts_ = 0, polled_ = 0;
};

class FaultyFabric final : public Fabric {
 public:
  FaultyFabric(std::unique_ptr<Fabric> inner, const Options& options) : inner_(std::move(inner)) {
    set_faults(faults_, options);
  }

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return inner_->add_region(region, base, bytes);
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) override {
    inner_->import_region(region, peer, exported, mapped);
  }
  void remove_region(uint32_t region) override { inner_->remove_region(region); }
  std::unique_ptr<Endpoint> endpoint() override {
    return std::make_unique<FaultyEndpoint>(inner_->endpoint(), faults_);
  }
  uint64_t max_message() const override { return inner_->max_message(); }
  std::string about() const override { return inner_->about(); }
  std::string address(uint32_t peer) override { return inner_->address(peer); }
  void connect(uint32_t peer, const std::string& address) override { inner_->connect(peer, address); }
  void probe(double seconds) override { inner_->probe(seconds); }
  bool leave(double seconds) override { return inner_->leave(seconds); }

  Faults& faults() { return faults_; }

 private:
  std::unique_ptr<Fabric> inner_;
  Faults faults_;
};

}  // namespace

bool is_fault(const std::string& key) {
  return std::any_of(std::begin(fields), std::end(fields),
                     [&](const Field& f) { return key == std::string(prefix) + f.name; });
}

bool has_faults(const Options& options) {
  return std::any_of(options.begin(), options.end(), [](const auto& entry) { return is_fault(entry.first); });
}

std::string fault_names() {
  std::string all;
  for (const Field& field : fields) all += (all.empty() ? "" : ", ") + std::string(prefix) + field.name;
  return all;
}

void set_faults(Faults& faults, const Options& options) {
  for (const Field& field : fields) {
    std::string key = std::string(prefix) + field.name;
    if (options.count(key)) faults.*field.value = option(options, key, 0, 0, UINT64_MAX);
  }
}

std::unique_ptr<Fabric> make_faulty(std::unique_ptr<Fabric> inner, const Options& options) {
  return std::make_unique<FaultyFabric>(std::move(inner), options);
}

Faults* faults_of(Fabric& fabric) {
  auto* faulty = dynamic_cast<FaultyFabric*>(&fabric);
  return faulty ? &faulty->faults() : nullptr;
}

}  // namespace gin::wire
