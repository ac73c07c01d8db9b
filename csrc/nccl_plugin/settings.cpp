#include "nccl_plugin/settings.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace gin::rma {
namespace {

constexpr double default_connect_timeout = 60, default_timeout = 30;
constexpr uint64_t default_pull = 64 << 10;

struct Unit {
  const char* name;
  double seconds;
};
constexpr Unit units[] = {{"", 1},   {"s", 1},    {"sec", 1},  {"ms", 1e-3}, {"us", 1e-6},
                          {"m", 60}, {"min", 60}, {"h", 3600}, {"ns", 1e-9}};

// Of the plugin's variable, or else of gin's.
double deadline(const char* own, const char* gins, double otherwise) {
  return seconds(std::getenv(own), seconds(std::getenv(gins), otherwise));
}

}  // namespace

double seconds(const char* text, double otherwise) {
  if (!text) return otherwise;
  if (!std::strcmp(text, "never")) return 0;
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || !(number >= 0)) return otherwise;
  while (*end == ' ') ++end;
  for (const Unit& unit : units)
    if (!std::strcmp(end, unit.name)) return number * unit.seconds;
  return otherwise;
}

Settings Settings::from_environment() {
  Settings found;
  found.connect_timeout = deadline("NCCL_RMA_GIN_CONNECT_TIMEOUT", "GIN_CONNECT_TIMEOUT", default_connect_timeout);
  found.timeout = deadline("NCCL_RMA_GIN_TIMEOUT", "GIN_TIMEOUT", default_timeout);
  const char* pull = std::getenv("NCCL_RMA_GIN_PULL");
  found.pull = pull ? std::strtoull(pull, nullptr, 10) : default_pull;
  return found;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

int Deadline::poll_ms() const {
  if (at_ == 0) return 100;
  return int(std::clamp((at_ - now()) * 1e3, 0.0, 100.0));
}

}  // namespace gin::rma
