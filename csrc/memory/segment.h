// Memory that ranks of one host share. It has no name in any file system: it lives in a memfd, peers map it through
// /proc/<pid>/fd/<fd>, and it is gone when the last process that maps it is, however that process ends.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace gin::memory {

class Segment {
 public:
  // New zeroed memory of `bytes` (0 is legal), taken from the machine page by page as it is touched. Throws
  // gin::Error{memory} when the machine could not give it all.
  static std::shared_ptr<Segment> create(uint64_t bytes, const std::string& name);

  // Maps the memory of another rank (or this one's own once more) from what its `export_name` returned. Throws
  // gin::Error that says why it cannot: another host, another user, a process that has ended.
  static std::shared_ptr<Segment> open(const std::string& exported);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // What peers hand to `open`. Throws once `seal` was called.
  std::string export_name() const;

  // Closes the descriptor: nobody can open the segment from now on, those who did keep it. To be called when all peers
  // have opened it.
  void seal();

  // Page aligned, and never null: a segment of 0 bytes has an address too.
  void* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  // Segments of this process that are still mapped.
  static uint64_t live();

 private:
  Segment(std::string name, int fd, void* address, uint64_t bytes);

  std::string name_;
  mutable std::mutex mutex_;  // guards fd_
  int fd_;                    // -1 once sealed, and in a segment that was opened
  void* address_;
  uint64_t bytes_;
};

}  // namespace gin::memory
