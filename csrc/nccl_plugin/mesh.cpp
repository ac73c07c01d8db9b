#include "nccl_plugin/mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>

#include "error.h"
#include "memory/host_id.h"

namespace gin::rma {
namespace {

using Kind = Error::Kind;

constexpr char magic[8] = {'g', 'i', 'n', 'r', 'm', 'a', '0', '1'};
constexpr size_t most_text = 60 << 10;
constexpr char news = 'n', failure = 'f', goodbye = 'b';

// How every letter starts.
struct Head {
  char kind;
  char step[27];
  uint32_t number;
};
static_assert(sizeof(Head) == 32);

// How a connection starts.
struct Hello {
  uint32_t rank;
  std::array<uint8_t, 32> secret;
};

std::string who(uint32_t rank) { return "rank " + std::to_string(rank); }
std::string reason(int error) { return std::strerror(error); }

void fill_random(void* bytes, size_t count) {
  for (size_t got = 0; got < count;) {
    const ssize_t some = getrandom(static_cast<char*>(bytes) + got, count - got, 0);
    if (some > 0) got += size_t(some);
  }
}

uint64_t this_host() { return std::hash<std::string>{}(memory::host_id()); }

// In the abstract namespace, which no file system shows.
socklen_t address_of(const Handle& handle, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  static const char prefix[] = "\0gin-rma-";
  char* out = address.sun_path;
  std::memcpy(out, prefix, sizeof(prefix) - 1);
  out += sizeof(prefix) - 1;
  for (uint8_t byte : handle.name) out += std::snprintf(out, 3, "%02x", byte);
  return socklen_t(offsetof(sockaddr_un, sun_path) + size_t(out - address.sun_path));
}

bool equal(const std::array<uint8_t, 32>& a, const std::array<uint8_t, 32>& b) {
  uint8_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == 0;
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

// Waits until the socket is ready; false past the deadline.
bool ready(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd one{fd, events, 0};
    const int count = poll(&one, 1, deadline.poll_ms());
    if (count > 0) return true;
    if (deadline.passed()) return false;
  }
}

// `timeout`: seconds to wait for where others have filled the peer's queue, 0 for as long as it takes.
Descriptor connect_to(const Handle& handle, uint32_t peer, double timeout) {
  sockaddr_un address;
  const socklen_t bytes = address_of(handle, address);
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) throw Error(Kind::bootstrap, "no socket for " + who(peer) + ": " + reason(errno));
  const timeval patience{time_t(timeout), suseconds_t((timeout - double(time_t(timeout))) * 1e6)};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0)
    throw Error(Kind::bootstrap, "cannot connect to " + who(peer) + ": " + reason(errno) +
                                     "; has its process ended, or is it in another network namespace?");
  if (!same_user(fd.get()))
    throw Error(Kind::bootstrap, who(peer) + " belongs to another user; run all ranks of a host as one user");
  return fd;
}

// Takes one connection that proves to know the secret; others are dropped.
std::optional<std::pair<uint32_t, Descriptor>> take_connection(const Listener& listener, const Deadline& deadline) {
  while (ready(listener.fd(), POLLIN, deadline)) {
    Descriptor fd(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() < 0 || !same_user(fd.get())) continue;
    Hello hello{};
    if (!ready(fd.get(), POLLIN, Deadline(2))) continue;
    if (recv(fd.get(), &hello, sizeof(hello), MSG_DONTWAIT) != ssize_t(sizeof(hello))) continue;
    if (equal(hello.secret, listener.handle().secret)) return std::pair(hello.rank, std::move(fd));
  }
  return std::nullopt;
}

void check_handles(const std::vector<Handle>& handles) {
  for (uint32_t peer = 0; peer < handles.size(); ++peer) {
    if (std::memcmp(handles[peer].magic, magic, sizeof(magic)) != 0)
      throw Error(Kind::config, who(peer) + " uses another RMA plugin or another version of gin's");
    if (handles[peer].host != this_host())
      throw Error(Kind::unsupported,
                  who(peer) +
                      " is on another host or in another container; gin's RMA plugin connects ranks of "
                      "one host only");
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Listener::Listener() : handle_{} {
  std::memcpy(handle_.magic, magic, sizeof(magic));
  handle_.host = this_host();
  fill_random(handle_.name.data(), handle_.name.size());
  fill_random(handle_.secret.data(), handle_.secret.size());
  sockaddr_un address;
  const socklen_t bytes = address_of(handle_, address);
  socket_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_.get() < 0 || bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::listen(socket_.get(), SOMAXCONN) != 0)
    throw Error(Kind::bootstrap, "cannot listen for the other ranks: " + reason(errno));
}

Mesh::Mesh(const Listener& listener, const std::vector<Handle>& handles, uint32_t rank, double timeout)
    : rank_(rank), timeout_(timeout), sockets_(handles.size()) {
  check_handles(handles);
  const Deadline deadline(timeout);
  for (uint32_t peer = 0; peer < rank; ++peer) {
    sockets_[peer] = connect_to(handles[peer], peer, timeout);
    const Hello hello{rank, handles[peer].secret};
    if (send(sockets_[peer].get(), &hello, sizeof(hello), MSG_NOSIGNAL) != ssize_t(sizeof(hello)))
      throw Error(Kind::bootstrap, who(peer) + " closed its connection: " + reason(errno));
  }
  for (uint32_t left = size() - 1 - rank; left > 0;) {
    auto taken = take_connection(listener, deadline);
    if (!taken) {
      std::string missing;
      for (uint32_t peer = rank + 1; peer < size(); ++peer)
        if (sockets_[peer].get() < 0) missing += " " + std::to_string(peer);
      throw Error(Kind::timeout, "these ranks have not connected within " + std::to_string(timeout) + " s:" + missing +
                                     "; GIN_CONNECT_TIMEOUT allows more");
    }
    auto& [peer, fd] = *taken;
    if (peer <= rank || peer >= size() || sockets_[peer].get() >= 0) continue;
    sockets_[peer] = std::move(fd);
    --left;
  }
}

Mesh::~Mesh() {
  Head head{goodbye, "close", 0};
  for (Descriptor& fd : sockets_)
    if (fd.get() >= 0) (void)!send(fd.get(), &head, sizeof(head), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::vector<Letter> Mesh::exchange(const char* step, const std::string& mine, const std::vector<int>& descriptors) {
  std::vector<Letter> letters = round(news, step, mine, descriptors);
  letters[rank_].text = mine;
  return letters;
}

void Mesh::fail(const char* step, const std::string& why) {
  try {
    round(failure, step, why.substr(0, 1000), {});
  } catch (const Error&) {  // the caller throws what it has
  }
}

// Everybody's letter is taken, whatever is in it: the next step finds none of this one's. Throws the first error.
std::vector<Letter> Mesh::round(char kind, const char* step, const std::string& text,
                                const std::vector<int>& descriptors) {
  const Deadline deadline(timeout_);
  std::optional<Error> first;
  const auto keep_first = [&](auto part) {
    try {
      part();
    } catch (const Error& error) {
      if (!first) first = error;
    }
  };
  std::vector<Letter> letters(size());
  for (uint32_t peer = 0; peer < size(); ++peer)
    if (peer != rank_) keep_first([&] { post(peer, kind, step, text, descriptors, deadline); });
  for (uint32_t peer = 0; peer < size(); ++peer)
    if (peer != rank_) keep_first([&] { letters[peer] = take(peer, step, deadline); });
  ++steps_;
  if (first) throw Error(*first);
  return letters;
}

void Mesh::post(uint32_t peer, char kind, const char* step, const std::string& text,
                const std::vector<int>& descriptors, const Deadline& deadline) {
  if (text.size() > most_text || descriptors.size() > most_descriptors)
    throw Error(Kind::internal, std::string(step) + ": too much for one letter");
  Head head{kind, {}, steps_};
  std::strncpy(head.step, step, sizeof(head.step) - 1);
  iovec parts[2] = {{&head, sizeof(head)}, {const_cast<char*>(text.data()), text.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(most_descriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
  }
  const int fd = sockets_[peer].get();
  while (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw Error(Kind::remote, std::string(step) + ": " + who(peer) + " has ended");
    if (!ready(fd, POLLOUT, deadline))
      throw Error(Kind::timeout, std::string(step) + ": " + who(peer) + " does not answer");
  }
}

Letter Mesh::take(uint32_t peer, const char* step, const Deadline& deadline) {
  const int fd = sockets_[peer].get();
  if (!ready(fd, POLLIN, deadline))
    throw Error(Kind::timeout, std::string(step) + ": " + who(peer) + " has not come within " +
                                   std::to_string(timeout_) + " s; GIN_CONNECT_TIMEOUT allows more");
  Head head{};
  std::string text(most_text, '\0');
  iovec parts[2] = {{&head, sizeof(head)}, {text.data(), text.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(most_descriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Letter letter;
  for (cmsghdr* part = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int one;
      std::memcpy(&one, CMSG_DATA(part) + i * sizeof(int), sizeof(one));
      letter.descriptors.emplace_back(one);
    }
  }
  if (got < ssize_t(sizeof(head)) || head.kind == goodbye)
    throw Error(Kind::remote, std::string(step) + ": " + who(peer) + " has ended");
  letter.text.assign(text, 0, size_t(got) - sizeof(head));
  head.step[sizeof(head.step) - 1] = '\0';
  if (std::strncmp(head.step, step, sizeof(head.step) - 1) != 0 || head.number != steps_)
    throw Error(Kind::internal, std::string(step) + ": " + who(peer) + " is at another step: " + head.step);
  if (head.kind == failure) throw Error(Kind::remote, std::string(step) + ": " + who(peer) + ": " + letter.text);
  return letter;
}

Presence Mesh::presence(uint32_t peer) {
  const int fd = sockets_[peer].get();
  if (fd < 0) return Presence::there;
  pollfd one{fd, POLLIN, 0};
  if (poll(&one, 1, 0) <= 0) return Presence::there;
  Head head{};
  const ssize_t got = recv(fd, &head, sizeof(head), MSG_PEEK | MSG_DONTWAIT);
  if (got >= ssize_t(sizeof(head)) && head.kind == goodbye) return Presence::left;
  if (got > 0 && !(one.revents & POLLHUP)) return Presence::there;  // a step that this rank has yet to come to
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Presence::there;
  return Presence::lost;
}

}  // namespace gin::rma
