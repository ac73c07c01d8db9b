#include "wire/verbs/core.h"

#include <cstring>
#include <iomanip>
#include <random>
#include <sstream>

#include "error.h"

namespace gin::wire::verbs {
namespace {

using Kind = Error::Kind;

constexpr const char* format = "gin-verbs-1";
constexpr uint64_t page = 4096;

std::string hex(const ibv_gid& gid) {
  std::ostringstream out;
  for (uint8_t byte : gid.raw) out << std::hex << std::setw(2) << std::setfill('0') << int(byte);
  return out.str();
}

bool unhex(const std::string& text, ibv_gid& gid) {
  if (text.size() != 2 * sizeof(gid.raw) || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (size_t i = 0; i < sizeof(gid.raw); ++i) gid.raw[i] = uint8_t(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return true;
}

char* new_pages(uint64_t bytes) {
  const uint64_t whole = (bytes + page - 1) / page * page;
  char* memory = static_cast<char*>(std::aligned_alloc(page, whole));
  if (!memory)
    throw Error(Kind::memory, "there is no memory for " + std::to_string(whole) + " bytes of the verbs wire");
  std::memset(memory, 0, whole);
  return memory;
}

}  // namespace

Pages::Pages(const Device& device, uint64_t bytes)
    : memory_(new_pages(bytes)), registration_(device.add(memory_.get(), bytes, false)) {}

std::string PeerAddress::text() const {
  std::ostringstream out;
  out << format << ' ' << port.lid << ' ' << hex(port.gid) << ' ' << port.mtu << ' ' << port.atomics << ' '
      << port.global << ' ' << sequence << ' ' << board.address << ' ' << board.key << ' ' << numbers.size();
  for (uint32_t number : numbers) out << ' ' << number;
  return out.str();
}

PeerAddress PeerAddress::parse(const std::string& text, uint32_t peer) {
  std::istringstream in(text);
  std::string tag, gid;
  size_t count = 0;
  PeerAddress a;
  in >> tag >> a.port.lid >> gid >> a.port.mtu >> a.port.atomics >> a.port.global >> a.sequence >> a.board.address >>
      a.board.key >> count;
  bool good = in && tag == format && unhex(gid, a.port.gid) && count <= text.size();
  if (good) a.numbers.resize(count);
  for (uint32_t& number : a.numbers) in >> number;
  if (!good || !in)
    throw Error(Kind::config, "cannot connect to rank " + std::to_string(peer) + ": '" + text.substr(0, 80) +
                                  "' was not made by the verbs wire of this version; use one wire on all ranks");
  return a;
}

Core::Core(uint32_t own_rank, uint32_t ranks, const Settings& options)
    : rank(own_rank),
      size(ranks),
      settings(options),
      device(open_device(options)),
      memory(*device, rank, size),
      board(*device, Board::bytes(size)),
      sequence(std::random_device{}() & 0xffffff),
      boards(size) {}

}  // namespace gin::wire::verbs
