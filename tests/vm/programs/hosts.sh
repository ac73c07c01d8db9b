# What each of two machines runs: jobs of one rank per machine over the network between them, whole and broken.
# hosts.sh PYTHON SOAK-SECONDS CASE... the last of gin conformance, over a network that loses packets
. "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
soak=$2
shift 2
export GIN_WIRE=verbs GIN_BACKEND=ibrc_proxy GIN_RANK=$NODE_RANK GIN_SIZE=2 GIN_JOB_SECRET=between-machines
export GIN_TIMEOUT=60s GIN_CONNECT_TIMEOUT=120s
# A peer that answers no more is given up after 4 s; less, and one whose processor is busy elsewhere would be, too.
export GIN_IB_TIMEOUT=17
port=7700
cases=()
for name in "$@"; do cases+=(--case "$name"); done

meet() { # NAME SECONDS COMMAND... with the rank of the other machine
  port=$((port + 1))
  export GIN_RENDEZVOUS=tcp://$MASTER_ADDR:$port
  job "$@"
}

sweep() { meet "$1" 300 "$python" -P "$here/sweep.py"; }
stream() { meet "$1" 300 "$python" -P "$here/stream.py" "${@:2}"; }
contract() { meet "$1" "$2" "$python" -P -m gin conformance --backend ibrc_proxy --route native --patience 4 -v "${@:3}"; }

# From here on what goes to the wire's port, and is so long, is lost on its way from this machine.
lose() { # BYTES
  local bit
  tc qdisc add dev eth0 root handle 1: prio
  tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100%
  for ((bit = $1; bit < 65536; bit *= 2)); do
    tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff \
      match u16 $(printf '0x%x 0x%x' $bit $bit) at 2 flowid 1:3
  done
}
impair() { tc qdisc replace dev eth0 root netem "$@"; }
mend() { tc qdisc del dev eth0 root; }

sweep sweep
GIN_CONTEXTS=1 meet latency 300 "$python" -P -m gin bench latency --route native -b 8 -e 8 -n 30 -w 5
impair loss 1%
meet soak $((soak + 600)) "$python" -P "$here/soak.py" "$soak"
export GIN_IB_RETRY=7 # for ever on Soft-RoCE: each packet that is lost or late costs one, until the next acknowledgement
impair loss 5%
sweep loss
GIN_IB_TIMEOUT=14 meet atomics 300 "$python" -P "$here/atomics.py" 150
impair delay 1ms reorder 3% duplicate 2%
sweep reorder
[ ${#cases[@]} -eq 0 ] || contract contract 1800 "${cases[@]}"
unset GIN_IB_RETRY
mend

# A firewall, and a network between two ports that carries less than both of them do.
if [ "$NODE_RANK" = 1 ]; then lose 1; fi
sweep blocked
if [ "$NODE_RANK" = 1 ]; then mend && lose 1024; fi
GIN_IB_MTU=1024 sweep narrow
GIN_IB_MTU=512 sweep narrow-known
if [ "$NODE_RANK" = 1 ]; then mend && ip link set eth0 mtu 600; fi
GIN_IB_MTU=1024 sweep small-port
if [ "$NODE_RANK" = 1 ]; then ip link set eth0 mtu 1500; fi

export GIN_TIMEOUT=120s
stream link-down 60 0 'ip link set eth0 down; sleep 8; ip link set eth0 up'
sleep 10
stream silence 60 1 'tc qdisc add dev eth0 root netem loss 100%; sleep 8; tc qdisc del dev eth0 root'
sleep 10
stream killed 60 1 'kill -9 $RANK_PID'
sweep again
GIN_IB_GID_INDEX=0 sweep link-local
if [ "$NODE_RANK" = 1 ]; then export GIN_IB_GID_INDEX=0; fi
sweep wrong-gid
