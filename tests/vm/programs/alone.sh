# What one machine runs, between ranks of its own: alone.sh PYTHON SOAK-SECONDS RANKS CASE... the last two of gin conformance.
. "$(dirname "${BASH_SOURCE[0]}")/jobs.sh"
soak=$2 ranks=$3
shift 3
export GIN_WIRE=verbs GIN_BACKEND=ibrc_proxy GIN_CONNECT_TIMEOUT=120s

program='import gin; gin.init(wire="verbs")'
cases=()
for name in "$@"; do cases+=(--case "$name"); done
objects() { for kind in pd cq qp mr; do echo "$kind $(rdma res show "$kind" | grep -c ' pid ')"; done | paste -sd ' '; }

job info 300 "$python" -P -m gin info
job memlock 300 setpriv --bounding-set -ipc_lock bash -c "ulimit -l 16; '$python' -P -c '$program'"
job latency 600 "$python" -P -m gin bench latency --route native -b 8 -e 64 -n 20 -w 3 --ranks 2
GIN_CONTEXTS=2 job leaks 900 "$python" -P -m gin run -n 2 "$here/leaks.py" 20
GIN_CONTEXTS=2 GIN_TIMEOUT=60s job leaks-killed 900 "$python" -P "$here/leaks.py" 5 kill
GIN_CONTEXTS=2 GIN_TIMEOUT=60s job lost 600 "$python" -P -m gin run -n 3 --keep-going -- "$python" -P "$here/lost.py" 20
before=$(objects)
GIN_TIMEOUT=60s job soak $((soak + 600)) "$python" -P -m gin run -n 3 "$here/soak.py" "$soak"
echo "objects before: $before, after: $(objects)"
job contract 3000 "$python" -P -m gin conformance --backend ibrc_proxy --route native --ranks "$ranks" --patience 4 \
  -v "${cases[@]}"
