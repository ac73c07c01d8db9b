# Sourced by what a machine runs: one job after the other, each with its name, output and exit status.
python=$1
here=$(dirname "${BASH_SOURCE[0]}")

job() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 status=0
  shift 2
  echo # ends a line that the kernel or what ran before has begun
  echo "== $name"
  timeout -k 5 "$seconds" "$@" 2>&1 || status=$?
  echo
  echo "== $name ended with $status"
}
