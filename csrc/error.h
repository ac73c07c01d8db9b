// What every part of gin throws: what went wrong, where, and what to do about it, with a kind that the Python binding maps
// to an exception class of gin.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace gin {

class Error : public std::runtime_error {
 public:
  enum class Kind { config, argument, unsupported, bootstrap, timeout, remote, memory, compile, kernel, internal };

  Error(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}

  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

}  // namespace gin
