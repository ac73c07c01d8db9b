// The smallest possible test harness: named cases that register themselves, checks that record and go on, and an exit
// code. `program` runs every case, `program NAME...` the cases whose name contains one of the arguments, `--list` lists.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "(" << sizeof(T) << " bytes)";
  }
  return out.str();
}

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class A, class B>
void equal(const A& a, const B& b, const char* a_text, const char* b_text, const char* file, int line) {
  if (!(a == b)) fail(file, line, std::string(a_text) + " == " + b_text + ": " + text(a) + " against " + text(b));
}

inline void contains(const std::string& all, const std::string& part, const char* file, int line) {
  if (all.find(part) == std::string::npos) fail(file, line, "\"" + part + "\" is not in \"" + all + "\"");
}

inline int run(int argc, char** argv) {
  int chosen = 0;
  for (const Case& c : cases()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(c.name, argv[i]);
    if (argc > 1 && !std::strcmp(argv[1], "--list")) {
      std::puts(c.name);
      ++chosen;
      continue;
    }
    if (!wanted) continue;
    ++chosen;
    int before = failures();
    try {
      c.body();
    } catch (const std::exception& e) {
      fail(c.name, 0, std::string("exception: ") + e.what());
    } catch (...) {
      fail(c.name, 0, "an exception of unknown type");
    }
    std::printf("%-4s %s\n", failures() == before ? "ok" : "FAIL", c.name);
    std::fflush(stdout);
  }
  if (!chosen) std::fprintf(stderr, "no case matches\n");
  return failures() || !chosen ? 1 : 0;
}

}  // namespace check

#define CHECK_JOIN_(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_(a, b)

// CASE(name) { ... }
#define CASE(name)                                                  \
  static void case_##name();                                        \
  static const check::Register register_##name(#name, case_##name); \
  static void case_##name()

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (0)

// Ends the case: for conditions without which the rest makes no sense.
#define REQUIRE(condition)                         \
  do {                                             \
    if (!(condition)) {                            \
      check::fail(__FILE__, __LINE__, #condition); \
      return;                                      \
    }                                              \
  } while (0)

#define CHECK_EQ(a, b) check::equal((a), (b), #a, #b, __FILE__, __LINE__)
#define CHECK_CONTAINS(all, part) check::contains((all), (part), __FILE__, __LINE__)

// The expression throws `type`; the message is then in `message` inside the braces that may follow.
#define CHECK_THROWS(type, part, ...)                                        \
  do {                                                                       \
    try {                                                                    \
      __VA_ARGS__;                                                           \
      check::fail(__FILE__, __LINE__, #__VA_ARGS__ " did not throw " #type); \
    } catch (const type& error) {                                            \
      check::contains(error.what(), part, __FILE__, __LINE__);               \
    }                                                                        \
  } while (0)

#define CHECK_MAIN \
  int main(int argc, char** argv) { return check::run(argc, argv); }
