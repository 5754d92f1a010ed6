#!/usr/bin/env bash
# A run on a TPU slice of Cloud TPU VMs, by a queued resource.
#
#   launch/tpu_vm.sh start  --name=N --accelerator=v6e-8 --project=P --zone=Z --bucket=gs://B/PREFIX \
#       -- --gin_file=gin/runs/a1_1_5b.gin [--gin.NAME=VALUE ...]
#   launch/tpu_vm.sh keep   (as start)  starts, and whenever the slice is taken away asks for it again
#   launch/tpu_vm.sh status --name=N --project=P --zone=Z     state of the slice and of the run
#   launch/tpu_vm.sh log    --name=N --project=P --zone=Z     the run's output, as it comes
#   launch/tpu_vm.sh stop   --name=N --project=P --zone=Z     saves and stops; `start` continues
#   launch/tpu_vm.sh delete --name=N --project=P --zone=Z     saves, stops, gives the slice back
#
# `start` plans the run for the slice on this machine (codea1 plan), asks for the slice if there is none,
# waits, copies the commit that is checked out, sets up .venv with the tpu extra on all workers, starts
# the same command on all of them and shows the log.
# The run folder is gs://B/PREFIX/N: the same command on a new slice continues the run.
# Programs run on the hosts' own CPUs; elsewhere with -- ... --gin.SandboxConfig.address="'HOST:PORT'".
#
#   --spot                    a slice that may be taken away at any time (use `keep`)
#   --service-account=EMAIL   of the hosts; it reads and writes the bucket
#   --network, --subnetwork, --internal-ips
#   --setup-command=COMMAND   run first on every host, as root (for example to install gcsfuse)
#   --no-log                  do not follow the log after starting
#   --allow-multi-host        slices of several hosts (see docs/launch.md)
#   --skip-plan               start without compiling the run for the slice first (codea1 plan)
#   --dry-run                 print every command instead of running it
#
# untested on hardware
set -euo pipefail
# shellcheck source=launch/cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

REMOTE=/opt/codea1


on_workers() { # WORKERS COMMAND
  run gcloud compute tpus tpu-vm ssh "$NAME" "${WHERE[@]}" "--worker=$1" "--command=$2"
}

state() { # ANSWER-IN-A-DRY-RUN
  ask "$1" gcloud compute tpus queued-resources describe "$NAME" "${WHERE[@]}" \
    "--format=value(state.state)"
}

create() {
  local command=(gcloud compute tpus queued-resources create "$NAME" "${WHERE[@]}" "--node-id=$NAME"
    "--accelerator-type=$TYPE" "--runtime-version=$VM_IMAGE" "--labels=codea1-run=$NAME")
  local key
  for key in spot internal-ips; do if given $key; then command+=("--$key"); fi; done
  for key in service-account network subnetwork; do
    if given $key; then command+=("--$key=${OPTION[$key]}"); fi
  done
  run "${command[@]}"
}

delete_slice() {
  run gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet
}

# Waits for the slice; a state it does not come back from is deleted and asked for again, once.
provision() { # STATE-IN-A-DRY-RUN
  local now has_retried=''
  now=$(state "$1")
  while [ "$now" != ACTIVE ]; do
    case $now in
      '') create ;;
      SUSPENDED | FAILED)
        [ -z "$has_retried" ] || die "the slice is $now again; see gcloud compute tpus queued-resources describe $NAME"
        has_retried=yes
        delete_slice
        create ;;
      *) pause 30 ;;
    esac
    now=$(state ACTIVE)
  done
}

deploy() {
  local archive=/tmp/$NAME.tar.gz prepare="sudo mkdir -p $REMOTE"
  run git -C "$ROOT" archive --format=tar.gz "--output=$archive" HEAD
  run gcloud compute tpus tpu-vm scp "$archive" "$NAME:$archive" "${WHERE[@]}" --worker=all
  if given setup-command; then prepare+=" && sudo bash -c $(quoted "${OPTION[setup-command]}")"; fi
  on_workers all "$prepare && sudo tar -xzf $archive -C $REMOTE && sudo bash $REMOTE/launch/worker.sh setup"
  on_workers all "sudo $(quoted bash $REMOTE/launch/worker.sh install "--bucket=${OPTION[bucket]}" "--name=$NAME" -- "${TRAIN[@]}")"
}

log() { on_workers 0 "sudo journalctl --unit=codea1 --follow --lines=200 --output=cat"; }

# disable: a run that was stopped must not start again when its host does.
stop_run() { on_workers all "sudo systemctl disable --now codea1"; }

keep() {
  local now status
  provision ''
  deploy
  note "every minute; a slice that was taken away is asked for again, a run that ended ends this"
  while true; do
    pause 60
    now=$(state SUSPENDED)
    if [ "$now" != ACTIVE ]; then
      provision "$now"
      deploy
    fi
    status=$(ask 'ActiveState=inactive ExecMainStatus=0' gcloud compute tpus tpu-vm ssh "$NAME" "${WHERE[@]}" --worker=0 \
      "--command=systemctl show codea1 --property=ActiveState,ExecMainStatus | sort | xargs")
    case $status in
      'ActiveState=inactive ExecMainStatus=0') note "the run is complete; the slice is still there: launch/tpu_vm.sh delete"; return ;;
      'ActiveState=inactive '* | 'ActiveState=failed '*)
        die "the run ended with exit code ${status##*=}; see launch/tpu_vm.sh log" ;;
    esac
  done
}

start_options() {
  require_options accelerator bucket
  check_accelerator
  check_bucket
  check_value service-account '[A-Za-z0-9._@-]+' "the e-mail address of a service account"
  check_value network '[A-Za-z0-9/_-]+' "the name of a network"
  check_value subnetwork '[A-Za-z0-9/_-]+' "the name of a subnetwork"
  check_train
  check_hosts "$HOSTS"
  need_tools git
  if ! is_dry; then
    git -C "$ROOT" diff --quiet HEAD || die "the checkout has changes that are not committed; the slice gets HEAD, so commit first"
  fi
  require "project ${OPTION[project]} does not exist, or you are not logged in: gcloud auth login" \
    gcloud projects describe "${OPTION[project]}" "--format=value(projectId)"
  require "zone ${OPTION[zone]} has no $TYPE, or Cloud TPU is not enabled for ${OPTION[project]}" \
    gcloud compute tpus accelerator-types describe "$TYPE" "${WHERE[@]}" "--format=value(type)"
  require_bucket
  require_plan
}

action=${1:-}
shift || true
case $action in
  -h | --help | help) usage; exit 0 ;;
  start | keep | status | log | stop | delete) ;;
  *) die "start, keep, status, log, stop or delete, not '$action' (see --help)" ;;
esac
parse "name accelerator project zone bucket service-account network subnetwork setup-command" \
  "spot internal-ips no-log allow-multi-host skip-plan dry-run" "$@"
require_options name project zone
check_name
check_project
check_zone
need_tools gcloud
NAME=${OPTION[name]}
WHERE=("--project=${OPTION[project]}" "--zone=${OPTION[zone]}")
case $action in
  start) start_options; provision ''; deploy; if ! given no-log; then log; fi ;;
  keep) start_options; keep ;;
  status)
    run gcloud compute tpus queued-resources describe "$NAME" "${WHERE[@]}"
    on_workers all "systemctl status codea1 --no-pager --lines=3" ;;
  log) log ;;
  stop) stop_run ;;
  delete)
    stop_run || note "no worker answers; the slice is deleted as it is"
    delete_slice ;;
esac
