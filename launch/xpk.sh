#!/usr/bin/env bash
# A run on a cluster that xpk made (https://github.com/AI-Hypercomputer/xpk), as an xpk workload.
#
#   launch/xpk.sh start  --name=N --accelerator=v6e-4 --project=P --zone=Z --cluster=C \
#       --image=IMAGE --bucket=gs://B/PREFIX -- --gin_file=gin/runs/a1_1_5b.gin [--gin.NAME=VALUE ...]
#   launch/xpk.sh status --name=N --project=P --zone=Z --cluster=C
#   launch/xpk.sh delete --name=N --project=P --zone=Z --cluster=C     stops; `start` continues
#
# xpk mounts the bucket: `start` attaches it to the cluster as storage of the bucket's name, at /bucket,
# for all workloads. The run folder is gs://B/PREFIX/N; xpk makes a workload that was evicted or
# preempted anew (exit codes 127 and above), not one whose configuration cannot run (exit code 2).
# Whether xpk's own wrapper hands SIGTERM on was not checked: count on periodic checkpoints.
# Logs: kubectl logs, or the link that xpk prints. Programs run on the TPU hosts' CPUs; elsewhere
# with -- ... --gin.SandboxConfig.address="'HOST:PORT'". IMAGE is made by launch/Dockerfile.
# xpk builds slices of 8 chips from two hosts.
#
#   --spot                    spot capacity
#   --allow-multi-host        slices of several hosts (see docs/launch.md)
#   --skip-plan               start without compiling the run for the slice first (codea1 plan)
#   --dry-run                 print every command instead of running it
#
# untested on hardware
set -euo pipefail
# shellcheck source=launch/cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

start() {
  require_options accelerator bucket image
  check_accelerator
  case ${OPTION[accelerator]} in
    v5e-1 | v5e-4) die "xpk has no ${OPTION[accelerator]}; its smallest slice of v5e has 8 chips" ;;
  esac
  check_bucket
  check_train
  check_hosts $((CHIPS < 4 ? 1 : CHIPS / 4))
  check_value image "$IMAGE_NAME" "the name of an image"
  require "there is no cluster ${OPTION[cluster]} in ${OPTION[project]}: xpk cluster create" \
    xpk cluster describe "${WHERE[@]}"
  require_bucket
  require_plan
  # Attached already is as good.
  run xpk storage attach "$BUCKET" "${WHERE[@]}" --type=gcsfuse "--bucket=$BUCKET" --size=1000 \
    --mount-point=/bucket --readonly=false --auto-mount=true || true
  local workload=(xpk workload create "--workload=$NAME" "${WHERE[@]}" "--tpu-type=$TYPE" --num-slices=1
    "--docker-image=${OPTION[image]}" --max-restarts=1000 --termination-grace-period-seconds=1800
    --env=CODEA1_MOUNT=/bucket
    "--command=$(quoted bash /opt/codea1/launch/worker.sh train "--bucket=${OPTION[bucket]}" "--name=$NAME" -- "${TRAIN[@]}")")
  if given spot; then workload+=(--spot); fi
  run "${workload[@]}"
}

action=${1:-}
shift || true
case $action in
  -h | --help | help) usage; exit 0 ;;
  start | status | delete) ;;
  *) die "start, status or delete, not '$action' (see --help)" ;;
esac
parse "name accelerator project zone cluster image bucket" "spot allow-multi-host skip-plan dry-run" "$@"
require_options name project zone cluster
check_name
check_project
check_zone
check_value cluster "$CLUSTER_NAME" "the name of a cluster"
need_tools gcloud xpk
NAME=${OPTION[name]}
WHERE=("--cluster=${OPTION[cluster]}" "--project=${OPTION[project]}" "--zone=${OPTION[zone]}")
case $action in
  start) start ;;
  status) run xpk workload list "${WHERE[@]}" "--filter-by-job=$NAME" ;;
  delete) run xpk workload delete "${WHERE[@]}" "--workload=$NAME" --force ;;
esac
