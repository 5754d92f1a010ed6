#!/usr/bin/env bash
# What runs on each TPU host or in each pod, whichever launcher started it. Not for typing.
#
#   worker.sh setup                                       Python, packages, gcsfuse (a TPU VM, as root)
#   worker.sh install --bucket=gs://B/P --name=N -- ARGS  `train` below as a systemd service, started
#   worker.sh train   --bucket=gs://B/P --name=N -- ARGS  codea1 train ARGS in the run folder gs://B/P/N
#
# The bucket is mounted at CODEA1_MOUNT (default /mnt/codea1), by gcsfuse if it is not there yet; the
# compile cache lies beside the runs. SIGTERM, and with CODEA1_NOTICES=1 a notice of maintenance or
# preemption from the metadata server, reach the trainer as SIGTERM: it saves at its next safe point
# and exits with 130. After a notice the run goes on once the notice is withdrawn or the host is back.
#
# untested on hardware
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MOUNT=${CODEA1_MOUNT:-/mnt/codea1}
METADATA=${CODEA1_METADATA:-http://metadata.google.internal/computeMetadata/v1}
SERVICE=codea1

die() {
  printf 'worker.sh: %s\n' "$*" >&2
  exit 2
}

setup() {
  # Programs in the sandbox run as other users: nothing they need may lie in root's home.
  export UV_PYTHON_INSTALL_DIR="$ROOT/.python" CODEA1_EXTRAS=tpu,wandb
  command -v uv >/dev/null || python3 -m pip install --quiet uv
  bash "$ROOT/launch/setup.sh"
  command -v gcsfuse >/dev/null || apt-get install --yes --quiet gcsfuse ||
    die "gcsfuse is not installed and apt does not know it; install it by --setup-command"
}

parse() {
  BUCKET='' NAME=''
  while [ $# -gt 0 ]; do
    case $1 in
      --bucket=*) BUCKET=${1#*=} ;;
      --name=*) NAME=${1#*=} ;;
      --) shift; ARGS=("$@"); break ;;
      *) die "unknown argument '$1'" ;;
    esac
    shift
  done
  [[ $BUCKET = gs://* && -n $NAME ]] || die "--bucket=gs://... and --name=... are needed"
  local path=${BUCKET#gs://}
  local prefix=${path#"${path%%/*}"}
  BUCKET=${path%%/*}
  prefix=${prefix#/}
  RUNS=$MOUNT${prefix:+/${prefix%/}}
}

install_service() {
  printf '%q ' exec /bin/bash "$ROOT/launch/worker.sh" train "$@" >"$ROOT/run.sh"
  # SIGTERM for the trainer alone: with its sandbox gone it could not finish the step it is in.
  cat >/etc/systemd/system/$SERVICE.service <<EOF
[Unit]
Description=codea1 train
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=5

[Service]
Environment=CODEA1_NOTICES=1
EnvironmentFile=-/etc/codea1.env
ExecStart=/bin/bash $ROOT/run.sh
KillMode=mixed
TimeoutStopSec=1800
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2 130

[Install]
WantedBy=multi-user.target
EOF
  systemctl daemon-reload
  systemctl enable $SERVICE
  systemctl restart $SERVICE
}

mount_bucket() {
  if mountpoint -q "$MOUNT"; then return; fi
  mkdir -p "$MOUNT"
  gcsfuse --implicit-dirs --rename-dir-limit=100000 "$BUCKET" "$MOUNT" ||
    die "cannot mount gs://$BUCKET; the host's service account needs to read and write its objects"
}

notice() {
  local event
  event=$(curl --silent --fail --max-time 5 --header 'Metadata-Flavor: Google' \
    "$METADATA/instance/maintenance-event" || true)
  if [ "$(curl --silent --fail --max-time 5 --header 'Metadata-Flavor: Google' \
    "$METADATA/instance/preempted" || true)" = TRUE ]; then event=PREEMPTED; fi
  echo "${event:-NONE}"
}

watch_notices() {
  local event
  while sleep "${CODEA1_NOTICE_S:-5}"; do
    event=$(notice)
    if [ "$event" != NONE ]; then
      echo "notice from the host: $event; the run saves and stops" >&2
      kill -TERM "$1"
      return
    fi
  done
}

# One run of the trainer. Sets CODE to its exit status and IS_ASKED if we were told to stop.
run_trainer() {
  local trainer watcher=''
  "$ROOT/.venv/bin/codea1" train --run_dir="$RUNS/$NAME" "${ARGS[@]}" &
  trainer=$!
  trap 'IS_ASKED=yes; kill -TERM $trainer 2>/dev/null || true' TERM INT
  if [ "${CODEA1_NOTICES:-0}" = 1 ]; then watch_notices "$trainer" & watcher=$!; fi
  # A signal ends `wait` early; the last one, after the trainer is gone, has the trainer's status.
  while kill -0 "$trainer" 2>/dev/null; do wait "$trainer" || true; done
  CODE=0
  wait "$trainer" || CODE=$?
  if [ -n "$watcher" ]; then kill "$watcher" 2>/dev/null || true; fi
}

train() {
  mount_bucket
  mkdir -p "$RUNS/$NAME" "$RUNS/compile_cache"
  export JAX_COMPILATION_CACHE_DIR="$RUNS/compile_cache"
  cd "$ROOT"
  IS_ASKED=''
  while true; do
    run_trainer
    if [ "$CODE" -ne 130 ] || [ -n "$IS_ASKED" ] || [ "${CODEA1_NOTICES:-0}" != 1 ]; then exit "$CODE"; fi
    until [ -n "$IS_ASKED" ] || [ "$(notice)" = NONE ]; do sleep "${CODEA1_NOTICE_S:-5}"; done
    if [ -n "$IS_ASKED" ]; then exit 130; fi
  done
}

command=${1:-}
shift || true
ARGS=()
case $command in
  setup) setup ;;
  install) parse "$@"; install_service "$@" ;;
  train) parse "$@"; train ;;
  *) die "setup, install or train, not '$command'" ;;
esac
