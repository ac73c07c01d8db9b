# Many cases of the contract: contract.sh PYTHON RANKS CASE... between ranks of one machine, or in each of two
# contract.sh PYTHON NETWORK CASE... over a network that tc's netem impairs so (empty: not at all).
. "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
export GIN_WIRE=verbs GIN_BACKEND=ibrc_proxy GIN_CONNECT_TIMEOUT=120s
if [ "${NNODES:-1}" = 2 ]; then
  export GIN_RANK=$NODE_RANK GIN_SIZE=2 GIN_JOB_SECRET=between-machines GIN_RENDEZVOUS=tcp://$MASTER_ADDR:7700
  where=()
  if [ -n "$2" ]; then
    # shellcheck disable=SC2086
    tc qdisc add dev eth0 root netem limit 100000 $2 # past 1000 waiting packets Soft-RoCE's own sends would fail
    export GIN_IB_TIMEOUT=12 # 17 ms; by default each loss that no later packet tells of takes a second
  fi
  export GIN_IB_RETRY=7 # for ever on Soft-RoCE: each packet that is lost or late costs one, until the next acknowledgement
else
  where=(--ranks "$2")
fi
shift 2
cases=()
for name in "$@"; do cases+=(--case "$name"); done
job contract 3500 "$python" -P -m gin conformance --backend ibrc_proxy --route native "${where[@]}" --patience 4 -v \
  "${cases[@]}"
