#include "wire/verbs/core.h"

#include <cstring>
#include <iomanip>
#include <random>
#include <sstream>

#include "error.h"

namespace gin::wire::verbs {
namespace {

using Kind = Error::Kind;

constexpr const char* format = "gin-verbs-2";
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

Pages::Pages(std::span<const std::unique_ptr<Device>> devices, uint64_t bytes) : memory_(new_pages(bytes)) {
  for (const auto& device : devices) registrations_.push_back(device->add(memory_.get(), bytes, false).handle);
}

std::string PeerAddress::text() const {
  std::ostringstream out;
  out << format << ' ' << sequence << ' ' << ports.size();
  for (size_t d = 0; d < ports.size(); ++d) {
    const PortAddress& port = ports[d];
    out << ' ' << port.lid << ' ' << hex(port.gid) << ' ' << port.mtu << ' ' << port.atomics << ' ' << port.global
        << ' ' << boards[d].address << ' ' << boards[d].key;
  }
  out << ' ' << numbers.size();
  for (uint32_t number : numbers) out << ' ' << number;
  return out.str();
}

PeerAddress PeerAddress::parse(const std::string& text, uint32_t peer) {
  std::istringstream in(text);
  std::string tag, gid;
  size_t devices = 0, count = 0;
  PeerAddress a;
  in >> tag >> a.sequence >> devices;
  bool good = in && tag == format && devices <= most_nics;
  if (good) a.ports.resize(devices), a.boards.resize(devices);
  for (size_t d = 0; good && d < devices; ++d) {
    PortAddress& port = a.ports[d];
    in >> port.lid >> gid >> port.mtu >> port.atomics >> port.global >> a.boards[d].address >> a.boards[d].key;
    good = in && unhex(gid, port.gid);
  }
  in >> count;
  good = good && in && count <= text.size();
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
      devices(open_devices(options)),
      memory(devices, rank, size),
      board(devices, Board::bytes(size)),
      sequence(std::random_device{}() & 0xffffff),
      peers(size) {}

}  // namespace gin::wire::verbs
