#include "wire/verbs/settings.h"

#include <sstream>

#include "error.h"
#include "wire/completions.h"

namespace gin::wire {

const std::vector<std::string> verbs_options = {
    "ib_hca",     "ib_port",  "ib_gid_index", "ib_pkey_index", "ib_sl",    "ib_traffic_class",
    "ib_timeout", "ib_retry", "ib_mtu",       "ib_inline",     "ib_depth", "ib_relaxed_ordering",
    "ib_nics",    "gpu",      "local_rank",
};

namespace verbs {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::istringstream in(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

// "a,b" for all ranks of the host, or "a,b/c,d" for each in turn.
void parse_devices(const std::string& text, Settings& s) {
  std::vector<std::string> lists = split(text, '/');
  s.own_devices = text.find('/') != std::string::npos;
  if (s.own_devices && s.local_rank >= lists.size())
    throw Error(Error::Kind::config, "GIN_IB_HCA ('" + text + "') names devices for " + std::to_string(lists.size()) +
                                         " ranks of a host, and this is local rank " + std::to_string(s.local_rank) +
                                         "; name devices for each, or one list without '/' for all");
  if (lists.empty()) return;
  for (const std::string& name : split(lists[s.own_devices ? s.local_rank : 0], ','))
    if (!name.empty()) s.devices.push_back(name);
  if (s.own_devices && s.devices.empty())
    throw Error(Error::Kind::config, "GIN_IB_HCA ('" + text + "') names no device for local rank " +
                                         std::to_string(s.local_rank) + "; name one for each rank of the host");
}

}  // namespace

Settings parse(const Options& options) {
  Settings s;
  s.local_rank = uint32_t(option(options, "local_rank", 0, 0, max_peers));
  if (auto found = options.find("ib_hca"); found != options.end()) parse_devices(found->second, s);
  if (auto found = options.find("gpu"); found != options.end()) s.gpu = found->second;
  s.nics = uint32_t(option(options, "ib_nics", 1, 1, most_nics));
  s.port = uint32_t(option(options, "ib_port", 0, 1, 255));
  s.gid_index = options.count("ib_gid_index") ? int32_t(option(options, "ib_gid_index", 0, 0, 65535)) : -1;
  s.pkey_index = uint8_t(option(options, "ib_pkey_index", 0, 0, 127));
  s.service_level = uint8_t(option(options, "ib_sl", 0, 0, 15));
  s.traffic_class = uint8_t(option(options, "ib_traffic_class", 0, 0, 255));
  s.timeout = uint8_t(option(options, "ib_timeout", 18, 1, 31));
  s.retry = uint8_t(option(options, "ib_retry", 6, 0, 7));
  s.mtu = uint32_t(option(options, "ib_mtu", 0, 256, 4096));
  if (s.mtu & (s.mtu - 1))
    throw Error(Error::Kind::config,
                "wire option ib_mtu is " + std::to_string(s.mtu) + "; it is 256, 512, 1024, 2048 or 4096");
  s.inline_bytes = uint32_t(option(options, "ib_inline", 64, 8, 1024));
  s.depth = uint32_t(option(options, "ib_depth", 256, 8, 1u << 15));
  s.relaxed = option(options, "ib_relaxed_ordering", 1, 0, 1);
  s.max_message = option(options, "max_message", default_max_message, 1, most_message);
  s.queue = option(options, "queue", default_queue, 1, most_queue);
  return s;
}

}  // namespace verbs
}  // namespace gin::wire
