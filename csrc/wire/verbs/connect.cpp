#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"
#include "wire/verbs/queue.h"

namespace gin::wire::verbs {
namespace {

void modify(Queue& queue, ibv_qp_attr& attr, int mask, const char* state, const std::string& where) {
  const int error = Library::get().modify_qp(queue.pair.get(), &attr, mask);
  if (!error) return;
  std::string what = "cannot connect to rank " + std::to_string(queue.peer) + " (" + where +
                     "): the queue pair did not become " + state + ": " + std::strerror(error);
  const bool unreached = error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT || error == EINVAL;
  if (unreached && attr.qp_state == IBV_QPS_RTR)  // the state that takes the peer's address
    what +=
        "; that address is not reached from this one: choose GIDs of one network with GIN_IB_HCA and GIN_IB_GID_INDEX "
        "(gin info lists them)";
  throw Error(Error::Kind::remote, what);
}

uint32_t path_mtu(const Device& device, const PortAddress& there) { return std::min(device.address.mtu, there.mtu); }

ibv_ah_attr route(const Core& core, const Device& device, const PortAddress& there) {
  ibv_ah_attr ah{};
  ah.port_num = uint8_t(device.about.port);
  ah.sl = core.settings.service_level;
  ah.dlid = uint16_t(there.lid);
  const bool other_subnet = there.gid.global.subnet_prefix != device.address.gid.global.subnet_prefix;
  ah.is_global = device.address.global || other_subnet;
  if (ah.is_global) {
    ah.grh.dgid = there.gid;
    ah.grh.sgid_index = uint8_t(device.about.gid_index);
    ah.grh.hop_limit = 64;
    ah.grh.traffic_class = core.settings.traffic_class;
  }
  return ah;
}

}  // namespace

std::string path(const Core& core, uint32_t number, uint32_t peer) {
  const Device& device = *core.devices[number];
  const PortAddress& there = core.peers[peer].ports[number];
  const std::string gid = device.about.gid.empty()
                              ? "LID " + std::to_string(device.address.lid)
                              : "GID " + std::to_string(device.about.gid_index) + ", " + device.about.gid;
  const std::string to = there.global ? text(there.gid) : "LID " + std::to_string(there.lid);
  return device.name() + ", " + gid + " to " + to + ", path MTU " + std::to_string(path_mtu(device, there));
}

void connect(Queue& queue, const Core& core, size_t endpoint) {
  const Settings& s = core.settings;
  const PeerAddress& address = core.peers[queue.peer];
  const uint32_t number = core.device_of(endpoint);
  const Device& device = *core.devices[number];
  const PortAddress& port = address.ports[number];
  const std::string where = path(core, number, queue.peer);
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = s.pkey_index;
  init.port_num = uint8_t(device.about.port);
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  modify(queue, init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "initialised", where);

  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.ah_attr = route(core, device, port);
  receive.path_mtu = mtu_code(path_mtu(device, port));
  receive.dest_qp_num = address.numbers[endpoint];
  receive.rq_psn = address.sequence;
  receive.max_dest_rd_atomic = uint8_t(std::min(device.address.atomics, 255u));
  receive.min_rnr_timer = 12;
  modify(queue, receive,
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER,
         "ready to receive", where);

  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = s.timeout;
  send.retry_cnt = s.retry;
  send.rnr_retry = 7;
  send.sq_psn = core.sequence;
  send.max_rd_atomic = uint8_t(std::min({device.initiated, port.atomics, 255u}));
  modify(queue, send,
         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
         "ready to send", where);
  queue.connected = true;
}

}  // namespace gin::wire::verbs
