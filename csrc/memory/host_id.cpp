#include "memory/host_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace gin::memory {

std::string host_id() {
  std::string boot = "unknown";
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file >> boot;
  struct stat status;
  uint64_t processes = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
  return boot + "-" + std::to_string(processes);
}

uint64_t start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t name_end = text.rfind(')');  // the name may itself hold spaces and brackets
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) rest >> skipped;
  uint64_t ticks = 0;
  rest >> ticks;
  return ticks;
}

}  // namespace gin::memory
