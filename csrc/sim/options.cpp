#include "sim/options.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <vector>

#include "error.h"

namespace gin::sim {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& wanted) {
  throw Error(Error::Kind::config, "simulation option " + key + " is '" + value + "'; it must be " + wanted);
}

template <class T>
T whole(const std::string& key, const std::string& text, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    refuse(key, text, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return T(value);
}

double positive(const std::string& key, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || !std::isfinite(value))
    refuse(key, text, "a number above 0");
  return value;
}

bool flag(const std::string& key, const std::string& text) {
  if (text == "1" || text == "True" || text == "true") return true;
  if (text == "0" || text == "False" || text == "false") return false;
  refuse(key, text, "0 or 1");
}

struct Entry {
  std::string name;
  std::function<void(Options&, const std::string& key, const std::string& text)> set;
};

template <class T, class Of>
Entry number(const char* name, Of of, uint64_t least = 0, uint64_t most = UINT64_MAX) {
  return {name, [=](Options& o, const std::string& key, const std::string& text) {
            of(o) = whole<T>(key, text, least, most);
          }};
}

template <class Of>
Entry yes_or_no(const char* name, Of of) {
  return {name, [=](Options& o, const std::string& key, const std::string& text) { of(o) = flag(key, text); }};
}

void add_links(std::vector<Entry>& all) {
  constexpr const char* classes[] = {"self", "intra", "inter"};
  constexpr uint64_t most_ns = 1'000'000'000;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string prefix = std::string("model.") + classes[i] + ".";
    const auto link = [i](Options& o) -> Link& { return o.model.links[i]; };
    all.push_back({prefix + "latency_ns", [=](Options& o, const std::string& key, const std::string& text) {
                     link(o).latency_ns = whole<uint64_t>(key, text, 0, most_ns);
                   }});
    all.push_back({prefix + "overhead_ns", [=](Options& o, const std::string& key, const std::string& text) {
                     link(o).overhead_ns = whole<uint64_t>(key, text, 0, most_ns);
                   }});
    all.push_back({prefix + "bandwidth_GBps", [=](Options& o, const std::string& key, const std::string& text) {
                     link(o).ps_per_byte = uint64_t(std::llround(1000 / positive(key, text)));
                   }});
    all.push_back({prefix + "rate_Mops", [=](Options& o, const std::string& key, const std::string& text) {
                     link(o).ps_per_message = uint64_t(std::llround(1e6 / positive(key, text)));
                   }});
  }
}

#define GIN_FIELD(path) [](Options& o) -> auto& { return o.path; }

std::vector<Entry> make_entries() {
  constexpr uint64_t most_ns = 1'000'000'000;
  std::vector<Entry> all{
      number<uint64_t>("seed", GIN_FIELD(seed)),
      {"policy",
       [](Options& o, const std::string& key, const std::string& text) {
         if (text != "random" && text != "pct") refuse(key, text, "random or pct");
         o.policy = text == "pct" ? Policy::pct : Policy::random;
       }},
      number<uint64_t>("depth", GIN_FIELD(depth), 1, 1000),
      number<uint64_t>("steps", GIN_FIELD(steps), 1, 1ull << 40),
      yes_or_no("hostile", GIN_FIELD(hostile)),
      number<uint32_t>("poison", GIN_FIELD(poison), 0, 2),
      yes_or_no("stalls", GIN_FIELD(stalls)),
      yes_or_no("direct", GIN_FIELD(direct)),
      yes_or_no("trace", GIN_FIELD(trace)),
      number<uint64_t>("max_message", GIN_FIELD(max_message), 1, 1ull << 47),
      number<uint64_t>("queue", GIN_FIELD(queue), 1, 1ull << 20),
      number<uint32_t>("max_threads", GIN_FIELD(max_threads), 0, 1u << 20),
      number<uint64_t>("patience", GIN_FIELD(patience), 1000),
      number<uint64_t>("most_steps", GIN_FIELD(most_steps)),
      number<uint64_t>("spin_limit_ms", GIN_FIELD(spin_limit_ms), 0, 1'000'000'000),
      number<uint32_t>("model.ranks_per_node", GIN_FIELD(model.ranks_per_node), 1, 1u << 20),
      number<uint64_t>("model.post_ns", GIN_FIELD(model.post_ns), 0, most_ns),
      number<uint64_t>("model.poll_ns", GIN_FIELD(model.poll_ns), 0, most_ns),
      number<uint64_t>("model.proxy_ns", GIN_FIELD(model.proxy_ns), 0, most_ns),
      number<uint64_t>("model.launch_ns", GIN_FIELD(model.launch_ns), 0, most_ns),
  };
  add_links(all);
#define GIN_FAULT(name) all.push_back(number<uint64_t>("fault." #name, GIN_FIELD(faults.name)))
  GIN_FAULT(fail_at);
  GIN_FAULT(fail_one_in);
  GIN_FAULT(fail_peer);
  GIN_FAULT(fail_code);
  GIN_FAULT(fail_detail);
  GIN_FAULT(dead_rank);
  GIN_FAULT(dead_after);
  GIN_FAULT(refuse_one_in);
  GIN_FAULT(register_at);
  GIN_FAULT(register_rank);
  GIN_FAULT(ignore_order);
  GIN_FAULT(settle_early);
  GIN_FAULT(complete_early);
  GIN_FAULT(lose_at);
  GIN_FAULT(lose_one_in);
  GIN_FAULT(signal_twice_at);
  GIN_FAULT(signal_twice_one_in);
#undef GIN_FAULT
  return all;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = make_entries();
  return all;
}

}  // namespace

Options Options::parse(const Texts& texts) {
  Options options;
  for (const auto& [key, text] : texts) {
    const Entry* found = nullptr;
    for (const Entry& entry : entries())
      if (entry.name == key) found = &entry;
    if (!found)
      throw Error(Error::Kind::config,
                  "a simulation has no option '" + key + "' (given as '" + text + "'); it takes " + names());
    found->set(options, key, text);
  }
  return options;
}

std::string Options::names() {
  std::string all;
  for (const Entry& entry : entries()) all += (all.empty() ? "" : ", ") + entry.name;
  return all;
}

}  // namespace gin::sim
