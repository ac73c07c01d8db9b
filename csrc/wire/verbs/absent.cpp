// The wire's place in a build without libibverbs' header.
#include "error.h"
#include "wire/verbs/verbs.h"

namespace gin::wire {
namespace {

[[noreturn]] void refuse() {
  throw Error(Error::Kind::unsupported,
              "this build of gin has no wire verbs: infiniband/verbs.h was missing when it was built; install it "
              "(Debian: apt-get install libibverbs-dev; Red Hat: dnf install rdma-core-devel) and install gin again");
}

}  // namespace

std::unique_ptr<Fabric> make_verbs(uint32_t, uint32_t, const Options&) { refuse(); }
std::vector<VerbsPort> verbs_ports(const Options&) { refuse(); }
std::vector<VerbsUse> verbs_used(const Options&) { refuse(); }
VerbsLive verbs_live() { return {}; }
std::string verbs_detail(uint64_t detail) { return "detail " + std::to_string(detail); }

}  // namespace gin::wire
