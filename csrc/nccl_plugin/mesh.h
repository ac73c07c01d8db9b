// The sockets by which the ranks of one communicator meet, agree, hand descriptors to one another and learn of each other's
// end. They have no name in a file system and take processes of the same user only, that know the listener's secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "nccl_plugin/abi.h"
#include "nccl_plugin/settings.h"

namespace gin::rma {

// A descriptor, closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

constexpr size_t most_descriptors = 200;  // of one letter

// What NCCL carries from a listener to all ranks.
struct Handle {
  char magic[8];
  uint64_t host;  // of the boot and the process namespace: descriptors and process numbers mean something there only
  std::array<uint8_t, 16> name;
  std::array<uint8_t, 32> secret;
};
static_assert(sizeof(Handle) <= abi::handle_bytes);

class Listener {
 public:
  Listener();  // throws gin::Error
  const Handle& handle() const { return handle_; }
  int fd() const { return socket_.get(); }

 private:
  Handle handle_;
  Descriptor socket_;
};

struct Letter {
  std::string text;
  std::vector<Descriptor> descriptors;
};

enum class Presence : uint8_t { there, left, lost };

class Mesh {
 public:
  // Collective: every rank connects to those before it and takes those after it. Throws gin::Error that names the ranks.
  Mesh(const Listener& listener, const std::vector<Handle>& handles, uint32_t rank, double timeout);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Collective: hands `mine` to every rank and returns theirs, one's own (without descriptors) as well. `step` is what is
  // being done. A rank that could not do its part calls `fail` instead, and the others throw what it says.
  std::vector<Letter> exchange(const char* step, const std::string& mine, const std::vector<int>& descriptors = {});
  void fail(const char* step, const std::string& why);

  // Whether a rank's process holds its end: `left` when it closed the communicator, `lost` when it ended without.
  Presence presence(uint32_t peer);

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return uint32_t(sockets_.size()); }

 private:
  std::vector<Letter> round(char kind, const char* step, const std::string& text, const std::vector<int>& descriptors);
  void post(uint32_t peer, char kind, const char* step, const std::string& text, const std::vector<int>& descriptors,
            const Deadline& deadline);
  Letter take(uint32_t peer, const char* step, const Deadline& deadline);

  uint32_t rank_;
  double timeout_;
  uint32_t steps_ = 0;
  std::vector<Descriptor> sockets_;  // by rank; none for one's own
};

}  // namespace gin::rma
