#include "memory/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "error.h"
#include "memory/available.h"
#include "memory/host_id.h"

namespace gin::memory {
namespace {

constexpr const char* format = "gin-segment-1";
std::atomic<uint64_t> live_segments{0};

using Kind = Error::Kind;

std::string reason(int error) { return std::strerror(error); }

// The length of the file behind a segment: whole pages, at least one, so that each segment has an address.
uint64_t file_bytes(uint64_t bytes) {
  uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

[[noreturn]] void refuse(const std::string& name, uint64_t bytes, const std::string& why) {
  throw Error(Kind::memory, "cannot allocate segment '" + name + "' of " + std::to_string(bytes) + " bytes: " + why);
}

void check_available(const std::string& name, uint64_t bytes) {
  Available have = available();
  if (bytes > have.bytes || bytes > uint64_t(INT64_MAX) - (1u << 20))
    refuse(name, bytes,
           std::to_string(have.bytes) + " bytes are available by " + have.limit +
               "; ask for a smaller window, start fewer ranks on this host, or raise that limit");
}

int create_file(const std::string& name, uint64_t bytes) {
  int fd = memfd_create(name.substr(0, 240).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) refuse(name, bytes, "memfd_create failed: " + reason(errno));
  if (ftruncate(fd, off_t(file_bytes(bytes))) != 0) {
    int error = errno;
    close(fd);
    refuse(name, bytes, "ftruncate failed: " + reason(error));
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);  // its size is final: peers check it once
  return fd;
}

void* map_file(int fd, uint64_t bytes) {
  return mmap(nullptr, file_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
}

// What `export_name` writes and `open` reads.
struct Exported {
  pid_t pid = 0;
  int fd = -1;
  uint64_t device = 0, inode = 0, bytes = 0, started = 0;
  std::string host, name;

  std::string text() const {
    std::ostringstream out;
    out << format << ' ' << pid << ' ' << fd << ' ' << device << ' ' << inode << ' ' << bytes << ' ' << started << ' '
        << host << ' ' << name;
    return out.str();
  }

  static Exported parse(const std::string& text) {
    std::istringstream in(text);
    std::string tag;
    Exported e;
    if (!(in >> tag >> e.pid >> e.fd >> e.device >> e.inode >> e.bytes >> e.started >> e.host) || tag != format)
      throw Error(Kind::config, "'" + text.substr(0, 80) +
                                    "' does not name a segment; pass what export() of a rank "
                                    "with the same version of gin returned");
    std::getline(in >> std::ws, e.name);
    return e;
  }

  std::string who() const { return "segment '" + name + "' of process " + std::to_string(pid); }
};

[[noreturn]] void refuse_open(const Exported& e, int error) {
  std::string what = "cannot open " + e.who() + ": ";
  if (start_time(e.pid) != e.started)
    throw Error(Kind::remote, what + "that process has ended; see its output for why");
  if (error == EACCES || error == EPERM)
    throw Error(Kind::unsupported, what + reason(error) +
                                       "; it belongs to another user or does not let itself be "
                                       "inspected; run all ranks of a host as one user");
  if (error == ENOENT)
    throw Error(Kind::remote, what + "its descriptor is closed; open segments before their owner seals them");
  throw Error(Kind::remote, what + reason(error));
}

}  // namespace

Segment::Segment(std::string name, int fd, void* address, uint64_t bytes)
    : name_(std::move(name)), fd_(fd), address_(address), bytes_(bytes) {
  live_segments.fetch_add(1, std::memory_order_relaxed);
}

Segment::~Segment() {
  munmap(address_, file_bytes(bytes_));
  if (fd_ >= 0) close(fd_);
  live_segments.fetch_sub(1, std::memory_order_relaxed);
}

std::shared_ptr<Segment> Segment::create(uint64_t bytes, const std::string& name) {
  check_available(name, bytes);
  int fd = create_file(name, bytes);
  void* address = map_file(fd, bytes);
  if (address == MAP_FAILED) {
    int error = errno;
    close(fd);
    refuse(name, bytes, "mmap failed: " + reason(error));
  }
  return std::shared_ptr<Segment>(new Segment(name, fd, address, bytes));
}

std::shared_ptr<Segment> Segment::open(const std::string& exported) {
  Exported e = Exported::parse(exported);
  if (e.host != host_id())
    throw Error(Kind::unsupported, "cannot open " + e.who() +
                                       ": it is on another host or in another container; ranks that share memory need "
                                       "one host and one process namespace (this is " +
                                       host_id() + ", it is on " + e.host + ")");
  std::string path = "/proc/" + std::to_string(e.pid) + "/fd/" + std::to_string(e.fd);
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) refuse_open(e, errno);
  struct stat status;
  if (fstat(fd, &status) != 0 || uint64_t(status.st_dev) != e.device || uint64_t(status.st_ino) != e.inode ||
      uint64_t(status.st_size) != file_bytes(e.bytes)) {
    close(fd);
    if (start_time(e.pid) != e.started) refuse_open(e, ESRCH);
    throw Error(Kind::remote, "cannot open " + e.who() +
                                  ": its descriptor now names something else; open segments "
                                  "before their owner seals them");
  }
  void* address = map_file(fd, e.bytes);
  int error = errno;
  close(fd);
  if (address == MAP_FAILED)
    throw Error(Kind::memory,
                "cannot map " + e.who() + " (" + std::to_string(e.bytes) + " bytes): " + reason(error) +
                    "; the limits of address space (ulimit -v) or of mappings (vm.max_map_count) may be too low");
  return std::shared_ptr<Segment>(new Segment(e.name, -1, address, e.bytes));
}

std::string Segment::export_name() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fd_ < 0)
    throw Error(Kind::config, "segment '" + name_ + "' cannot be exported: it was sealed, or it is a peer's");
  struct stat status;
  if (fstat(fd_, &status) != 0)
    throw Error(Kind::internal, "fstat of segment '" + name_ + "' failed: " + reason(errno));
  Exported e;
  e.pid = getpid();
  e.fd = fd_;
  e.device = status.st_dev;
  e.inode = status.st_ino;
  e.bytes = bytes_;
  e.started = start_time(e.pid);
  e.host = host_id();
  e.name = name_;
  return e.text();
}

void Segment::seal() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

uint64_t Segment::live() { return live_segments.load(std::memory_order_relaxed); }

}  // namespace gin::memory
