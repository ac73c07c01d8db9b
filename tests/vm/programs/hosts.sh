# What each of two machines runs: jobs of one rank per machine over the network between them, whole and broken.
python=$1
here=$(dirname "${BASH_SOURCE[0]}")
export GIN_WIRE=verbs GIN_RANK=$NODE_RANK GIN_SIZE=2 GIN_JOB_SECRET=between-machines GIN_TIMEOUT=20s GIN_CONNECT_TIMEOUT=60s
port=7700

job() { # NAME PROGRAM...
  local name=$1 status=0
  shift
  port=$((port + 1))
  echo "== $name"
  GIN_RENDEZVOUS=tcp://$MASTER_ADDR:$port timeout 150 "$python" "$@" 2>&1 || status=$?
  echo
  echo "== $name ended with $status"
}

impair() { tc qdisc replace dev eth0 root netem "$@"; }

job sweep "$here/sweep.py"
GIN_CONTEXTS=1 job latency -m gin bench latency --backend ibrc_proxy --route native -b 8 -e 8 -n 30 -w 5
impair loss 3%
GIN_IB_TIMEOUT=14 job loss "$here/sweep.py"
impair delay 1ms reorder 3% duplicate 2%
GIN_IB_TIMEOUT=16 GIN_TIMEOUT=60s job reorder "$here/sweep.py"
tc qdisc del dev eth0 root
export GIN_IB_TIMEOUT=14
job link-down "$here/stream.py" 60 0 'ip link set eth0 down; sleep 8; ip link set eth0 up'
sleep 10
job silence "$here/stream.py" 60 1 'tc qdisc add dev eth0 root netem loss 100%; sleep 8; tc qdisc del dev eth0 root'
sleep 10
job killed "$here/stream.py" 60 1 'kill -9 $RANK_PID'
job again "$here/sweep.py"
GIN_IB_GID_INDEX=0 job link-local "$here/sweep.py"
if [ "$NODE_RANK" = 1 ]; then export GIN_IB_GID_INDEX=0; fi
job wrong-gid "$here/sweep.py"
