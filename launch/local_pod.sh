#!/usr/bin/env bash
# A pod in miniature: the trainer as several processes on this machine, joined over loopback, each
# with fake CPU devices and a sandbox of its own, all with one run folder. For trying what a slice
# of several hosts does; it is slower than one process.
#
#   launch/local_pod.sh [--processes 2] [--devices 4] [train's arguments]
#
#   --processes   how many processes
#   --devices     devices of each process
#   RUN_DIR       run folder (default: runs/local_pod). An unfinished run in it is continued.
#
# Output of process N goes to RUN_DIR.N.log; the leading process also prints here. When one process
# ends badly the others are stopped, and the same command continues the run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

processes=2 devices=4 arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --processes) processes=$2; shift 2 ;;
    --devices) devices=$2; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
for number in "$processes" "$devices"; do
  if ! [[ $number =~ ^[1-9][0-9]*$ ]]; then
    echo "local_pod.sh: --processes and --devices take whole numbers above 0, not '$number'" >&2
    exit 2
  fi
done
RUN_DIR=${RUN_DIR:-runs/local_pod}
[ ${#arguments[@]} -gt 0 ] || arguments=(--gin_file=gin/runs/smoke.gin)
mkdir -p "$(dirname "$RUN_DIR")"

port=$("$VENV/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export JAX_PLATFORMS=cpu JAX_COORDINATOR_ADDRESS=127.0.0.1:$port JAX_NUM_PROCESSES=$processes
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$devices"

pids=()
# A process that waits for a dead one cannot save; it gets ten seconds.
stop() {
  kill "${pids[@]}" 2>/dev/null || return 0
  for _ in {1..20}; do
    kill -0 "${pids[@]}" 2>/dev/null || return 0
    sleep 0.5
  done
  kill -KILL "${pids[@]}" 2>/dev/null || true
}
trap stop EXIT INT TERM
for ((i = 0; i < processes; i++)); do
  JAX_PROCESS_ID=$i "$VENV/bin/codea1" train --distributed --run_dir="$RUN_DIR" "${arguments[@]}" \
    > >(if [ "$i" = 0 ]; then tee "$RUN_DIR.$i.log"; else cat >"$RUN_DIR.$i.log"; fi) 2>&1 &
  pids+=($!)
done

while true; do
  code=0
  wait -n || code=$?
  if [ "$code" = 127 ]; then break; fi  # all have ended
  if [ "$code" != 0 ]; then
    echo "local_pod.sh: a process ended with exit code $code; see $RUN_DIR.*.log. The same command continues the run" >&2
    exit "$code"
  fi
done
