# shellcheck shell=bash
# What tpu_vm.sh, gke.sh and xpk.sh share: options, checks, and commands that are run or, with
# --dry-run, printed as they would be typed. Sourced.
# untested on hardware

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/accelerators.sh
source "$ROOT/launch/accelerators.sh"

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

# Options. `parse VALUES FLAGS ARGS...`: "--key value" and "--key=value" set OPTION[key], a flag sets
# it to yes; what follows "--" is TRAIN, the arguments of `codea1 train`.
declare -A OPTION
TRAIN=()
parse() {
  local values=" $1 " flags=" $2 " key
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --) shift; TRAIN=("$@"); return ;;
      --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; key=${1#--}
        [[ $flags != *" $key "* ]] || die "--$key takes no value; leave '=$2' out"
        [[ $values = *" $key "* ]] || die "unknown option --$key; the options are:$(option_names "$values$flags")" ;;
      --*) key=${1#--} ;;
      *) die "unexpected argument '$1'; arguments of codea1 train follow --" ;;
    esac
    if [[ $values = *" $key "* ]]; then
      [ $# -ge 2 ] || die "--$key needs a value"
      OPTION[$key]=$2
      shift 2
    elif [[ $flags = *" $key "* ]]; then
      OPTION[$key]=yes
      shift
    else
      die "unknown option --$key; the options are:$(option_names "$values$flags")"
    fi
  done
}
option_names() { local name; for name in $1; do printf ' --%s' "$name"; done; }
given() { [ -n "${OPTION[$1]:-}" ]; }
is_dry() { given dry-run; }

# Checks that need no network.
# shellcheck disable=SC2034  # read by the scripts that source this file
CLUSTER_NAME='[a-z]([a-z0-9-]{0,38}[a-z0-9])?' IMAGE_NAME='[a-z0-9][A-Za-z0-9._/:@-]*'
# shellcheck disable=SC2034
KUBERNETES_NAME='[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?'
require_options() {
  local key
  for key in "$@"; do given "$key" || die "--$key is missing (see --help)"; done
}
check_value() { # KEY PATTERN WHAT: where it is given
  ! given "$1" || [[ ${OPTION[$1]} =~ ^($2)$ ]] || die "--$1 '${OPTION[$1]}' is not $3"
}
check_name() {
  [[ ${OPTION[name]} =~ ^[a-z]([a-z0-9-]{0,36}[a-z0-9])?$ ]] ||
    die "--name '${OPTION[name]}' is not a name: lower-case letters, digits and hyphens, at most 38, a letter first"
}
check_project() {
  [[ ${OPTION[project]} =~ ^([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$ ]] ||
    die "--project '${OPTION[project]}' is not a project id (the id, not the display name or number)"
}
check_zone() {
  [[ ${OPTION[zone]} =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] ||
    die "--zone '${OPTION[zone]}' is not a zone such as us-east5-b"
}
check_bucket() {
  [[ ${OPTION[bucket]} =~ ^gs://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])((/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?)$ ]] ||
    die "--bucket '${OPTION[bucket]}' is not a bucket path such as gs://my-bucket/codea1"
  BUCKET=${BASH_REMATCH[1]}
}
check_accelerator() {
  find_accelerator "${OPTION[accelerator]}" ||
    die "--accelerator '${OPTION[accelerator]}' is not known; one of: $(accelerator_names)"
}
# Several hosts are several processes of one run. Delete the check when that was seen to work on a TPU.
check_hosts() {
  [ "$1" -gt 1 ] || return 0
  given allow-multi-host ||
    die "${OPTION[accelerator]} has $1 hosts here, and codea1 train --distributed has not been tried on a TPU: take a slice of one host, or add --allow-multi-host"
  TRAIN=(--distributed "${TRAIN[@]}")
}
check_train() {
  local argument is_gin=
  for argument in "${TRAIN[@]}"; do
    case $argument in
      --gin_file=*) is_gin=yes
        [ -f "$ROOT/${argument#*=}" ] || die "${argument#*=} is not a file of this checkout ($ROOT)" ;;
      --run_dir*) die "leave --run_dir out: the run folder is BUCKET/NAME" ;;
      --dry_run) die "--dry_run would rent a slice to print a configuration; type codea1 train --dry_run here, or --dry-run before the --" ;;
      --gin.*=*) ;;
      *) die "'$argument' is not an argument of codea1 train; write --gin_file=FILE and --gin.NAME=VALUE" ;;
    esac
  done
  [ -n "$is_gin" ] || die "no run file: add -- --gin_file=gin/runs/a1_1_5b.gin"
}
need_tools() {
  local tool
  if is_dry; then return; fi
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "$tool is not installed or not on PATH"
  done
}

# Commands.
exec 3>&1  # where a dry run prints, also from inside $(...)

# The words of a command as they would be typed.
quoted() {
  local word text=
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    text+=" $word"
  done
  printf '%s' "${text# }"
}
show() { printf '$ %s\n' "$(quoted "$@")" >&3; }
note() { printf '# %s\n' "$*" >&3; }

# Runs a command.
run() {
  show "$@"
  if ! is_dry; then "$@"; fi
}
# Runs a command that must succeed for the launch to make sense; $1 is the sentence if it does not.
require() {
  local sentence=$1
  shift
  show "$@"
  if ! is_dry; then "$@" >/dev/null 2>&1 </dev/null || die "$sentence"; fi
}
# The output of a command; in a dry run $1.
ask() {
  local pretended=$1
  shift
  if is_dry; then
    show "$@"
    printf '%s' "$pretended"
  else
    "$@" 2>/dev/null </dev/null || true
  fi
}
# Gives text $1 to a command's standard input.
feed() {
  local text=$1
  shift
  if is_dry; then
    printf "\$ %s <<'EOF'\n%s\nEOF\n" "$(quoted "$@")" "$text" >&3
  else
    printf '%s\n' "$text" | "$@"
  fi
}
pause() { if ! is_dry; then sleep "$1"; fi; }

require_bucket() {
  require "gs://$BUCKET does not exist or you may not read it; make it with hierarchical namespace (gcloud storage buckets create gs://$BUCKET --uniform-bucket-level-access --enable-hierarchical-namespace), so that a checkpoint's rename is atomic" \
    gcloud storage buckets describe "gs://$BUCKET" "--project=${OPTION[project]}" "--format=value(name)"
}

# Compiles the run for the slice, on this machine, before anything costs money. The first time takes
# minutes (of one processor; several GB of memory), later ones seconds.
require_plan() {
  local plan=("$ROOT/.venv/bin/codea1" plan "--topology=${OPTION[accelerator]}") argument code=0
  if given skip-plan; then return; fi
  for argument in "${TRAIN[@]}"; do
    if [ "$argument" != --distributed ]; then plan+=("$argument"); fi
  done
  if ! is_dry && ! [ -x "${plan[0]}" ]; then
    die "no .venv to plan the run with: CODEA1_EXTRAS=aot launch/setup.sh makes it; or add --skip-plan"
  fi
  (cd "$ROOT" && run "${plan[@]}") || code=$?
  case $code in
    0) ;;
    1) die "the run does not fit ${OPTION[accelerator]}, nothing was started; the plan above says what to change (--skip-plan starts it anyway)" ;;
    *) die "the run could not be planned, nothing was started; mend what codea1 plan says above (libtpu: CODEA1_EXTRAS=aot launch/setup.sh), or add --skip-plan" ;;
  esac
}
