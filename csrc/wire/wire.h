// What the progress engine, and every emulated library, posts to. A fabric is one job's memory and peers over one kind
// of wire; an endpoint is one thread's way to post and to learn what has completed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "wire/request.h"

namespace gin::wire {

// One thread posts and polls. Requests of one context to one peer may settle in any order unless `ordered` or a fence
// says otherwise; completions may come in any order. What goes wrong is said by completions: nothing is thrown.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // Takes requests from the front and returns how many; fewer than `count` when full. What it takes it completes.
  virtual size_t post(const Request* requests, size_t count) = 0;
  // Writes up to `count` completions and returns how many. Never waits.
  virtual size_t poll(Completion* completions, size_t count) = 0;
  // Whether everything that had completed with ok when this was first asked, since it last was true, has also settled at its
  // target, so that requests that go on completing do not put it off; to be asked, and polled between, until true. Where a
  // peer is lost with such requests, not before poll has told. Never waits.
  virtual bool settled() = 0;
  // The peer is given up: what is under way to it completes soon, with whatever code, and nothing more will be posted to it.
  // Again and again for the same peer is once.
  virtual void abandon(uint32_t peer) { (void)peer; }
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  // Names this rank's memory; returns what every peer has to hand to `import_region`. Throws gin::Error.
  virtual std::string add_region(uint32_t region, void* base, uint64_t bytes) = 0;
  // Makes a peer's region reachable. `mapped` is where this process maps the same memory, or nullptr.
  virtual void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) = 0;
  virtual void remove_region(uint32_t region) = 0;
  virtual std::unique_ptr<Endpoint> endpoint() = 0;
  virtual uint64_t max_message() const = 0;

  // What this rank uses, in words; empty where there is nothing to say.
  virtual std::string about() const { return {}; }

  // Wires with connections. Once all endpoints exist, every rank hands `address(p)` to the `connect` of rank p, its own as
  // well; when all have, `probe` proves that every peer is reached. An empty address: there is nothing to connect. Throw
  // gin::Error, which names the peers.
  virtual std::string address(uint32_t peer) {
    (void)peer;
    return {};
  }
  virtual void connect(uint32_t peer, const std::string& address) { (void)peer, (void)address; }
  virtual void probe(double seconds) { (void)seconds; }

  // Says that nothing more comes from here and waits until every live peer has said so, for `seconds` at most; returns
  // whether all did. No thread may use an endpoint any more.
  virtual bool leave(double seconds) {
    (void)seconds;
    return true;
  }
};

}  // namespace gin::wire
