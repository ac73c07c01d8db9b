// Compiles kernels for the host platform's tests: what gin/platforms/host_source.py does, for sources without surprises.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "error.h"
#include "host/module.h"
#include "host/stream.h"

namespace host_test {

using namespace gin::host;

#define HOST_TEST_TEXT_(x) #x
#define HOST_TEST_TEXT(x) HOST_TEST_TEXT_(x)

#if defined(__aarch64__)
constexpr const char* tls_dialect = "trad";
#else
constexpr const char* tls_dialect = "gnu";
#endif

inline std::string sanitizer_flags() {
#if defined(__SANITIZE_ADDRESS__)
  return " -g -fsanitize=address,undefined -fno-sanitize-recover=all";
#elif defined(__SANITIZE_THREAD__)
  return " -g -fsanitize=thread";
#else
  return "";
#endif
}

// A folder that goes with the process.
class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/gin-host-test-XXXXXX";
    path_ = mkdtemp(pattern.data()) ? pattern : "";
    owner_ = getpid();
  }
  ~Folder() {
    if (owner_ == getpid() && std::system(("rm -rf " + path_).c_str()) != 0) std::perror("rm");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  pid_t owner_;
};

inline const std::string& folder() {
  static Folder f;
  return f.path();
}

inline std::string root() {
  std::string file = __FILE__;
  return file.substr(0, file.size() - std::string("/tests/cpp/host_kernel.h").size());
}

// The path of the shared object, or throws with the compiler's output. `dynamic`: the names of dynamic shared arrays.
inline std::string compile_file(const std::string& source, const std::string& entry,
                                const std::vector<std::string>& dynamic = {}, const std::string& flags = "") {
  static int count = 0;
  std::string stem = folder() + "/k" + std::to_string(count++);
  std::ofstream out(stem + ".cpp");
  out << "#line 1 \"kernel.cu\"\n" << source << "\n";
  for (const auto& name : dynamic) out << "GIN_HOST_DYNAMIC_SHARED(" << name << ")\n";
  out << "GIN_HOST_ENTRY(" << entry << ")\n";
  out.close();
  const char* cxx = std::getenv("CXX");
  std::string compiler = cxx ? cxx : "c++";
  std::string gcc_only = std::string("-mtls-dialect=") + tls_dialect + " -fno-gnu-unique -fno-extern-tls-init";
  std::string command = "(" + compiler + " -std=c++17 -x c++ -shared -fPIC -O2 -fvisibility=hidden" + " $(" + compiler +
                        " --version | grep -q clang || echo " + gcc_only + ")" +
                        " -fno-strict-aliasing -fstack-clash-protection -fno-exceptions -Wall -include gin_host.h -I" +
                        root() + "/csrc/host/include" + sanitizer_flags() + " " + flags + " " + stem + ".cpp -o " +
                        stem + ".so) > " + stem + ".log 2>&1";
  if (std::system(command.c_str()) != 0) {
    std::ifstream log(stem + ".log");
    std::stringstream text;
    text << log.rdbuf();
    throw gin::Error(gin::Error::Kind::compile, text.str());
  }
  return stem + ".so";
}

inline std::shared_ptr<Module> compile(const std::string& source, const std::string& entry = "k",
                                       const std::vector<std::string>& dynamic = {}, const std::string& flags = "") {
  return std::make_shared<Module>(compile_file(source, entry, dynamic, flags));
}

template <class T>
std::string bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Shape {
  Index3 grid{1, 1, 1}, block{1, 1, 1};
  uint32_t shared = 0;
  void* library = nullptr;
};

template <class... A>
Launch make_launch(std::shared_ptr<const Module> module, const Shape& shape, const A&... arguments) {
  Launch l;
  l.arguments = Arguments(*module, {bytes(arguments)...});
  l.module = std::move(module);
  l.name = l.module->entry().name;
  l.grid = shape.grid;
  l.block = shape.block;
  l.shared = shape.shared;
  l.library = shape.library;
  return l;
}

// Runs one launch to its end on a stream of its own.
template <class... A>
void run(std::shared_ptr<const Module> module, const Shape& shape, const A&... arguments) {
  Stream stream;
  stream.launch(make_launch(std::move(module), shape, arguments...));
  if (!stream.synchronize(std::chrono::seconds(60))) {
    throw gin::Error(gin::Error::Kind::timeout, "a kernel has not ended within 60 s: " + stream.where());
  }
}

// The message of the error that `body` throws, "" without.
template <class F>
std::string error_of(F body) {
  try {
    body();
  } catch (const gin::Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace host_test
