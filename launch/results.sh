#!/usr/bin/env bash
# Runs baselines and ablations on the embedded problems and compares them: every figure of
# docs/results.md. Finished runs are kept, unfinished ones continued: after a stop, give the same
# command again. Three minutes a run on two cores.
#
#   launch/results.sh all                       every name of docs/results.md, seeds 0, 1 and 2
#   launch/results.sh golden code_a1            some of them
#   launch/results.sh alpha_0 --seeds "0 1"     other seeds
#   launch/results.sh all --dry-run             prints the commands, runs nothing
#
# A name is `code_a1` (gin/runs/results.gin as it is) or a file of gin/baselines, gin/ablations or
# gin/algo that goes on top of it.
#
#   RESULTS   folder of the runs (default: runs/results). NAME_SEED is a run, compare/ holds the
#             table (compare.md, compare.csv) and the curves (compare.png) of the names given.
set -euo pipefail

ALL="base golden self_play sft_tester code_a1
  alpha_0 alpha_1 no_book black_box no_predicted_answer"
RESULTS=${RESULTS:-runs/results}
RUN_FILE=gin/runs/results.gin
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { echo "results.sh: $1" >&2; exit 2; }

# The overlay of a name, as a path from the root; empty for code_a1.
overlay() {
  local folder
  if [ "$1" = code_a1 ]; then return; fi
  for folder in baselines ablations algo; do
    if [ -f "gin/$folder/$1.gin" ]; then echo "gin/$folder/$1.gin"; return; fi
  done
  fail "no $1.gin in gin/baselines, gin/ablations or gin/algo; see --help"
}

# Runs a command, or prints it.
act() {
  if [ "$dry_run" ]; then echo "codea1 $*"; else "$VENV/bin/codea1" "$@"; fi
}

# One command that makes the run folder $1; once it is through, it is not repeated.
once() {
  local run_dir=$1
  shift
  if [ -e "$run_dir/finished" ]; then echo "$run_dir: finished before"; return; fi
  act "$@" --run_dir="$run_dir"
  if ! [ "$dry_run" ]; then touch "$run_dir/finished"; fi
}

names=() seeds="0 1 2" dry_run=""
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=${2:?--seeds needs numbers, for example --seeds "0 1"}; shift ;;
    --dry-run) dry_run=yes ;;
    --help | -h) sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; exit ;;
    all) read -r -d '' -a names <<<"$ALL" || true ;;
    -*) fail "unknown option $1; see --help" ;;
    *) names+=("$1") ;;
  esac
  shift
done
[ ${#names[@]} -gt 0 ] || fail "name what to run, or all; see --help"
[[ $seeds =~ ^[0-9]+(\ [0-9]+)*$ ]] || fail "--seeds '$seeds': numbers with spaces between them"
cd "$HERE/.."
for name in "${names[@]}"; do overlay "$name" >/dev/null; done
if ! [ "$dry_run" ]; then
  source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
  # Runs share most of their compiled programs.
  mkdir -p "$RESULTS/compiled"
  JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$(cd "$RESULTS/compiled" && pwd)}
  export JAX_COMPILATION_CACHE_DIR
fi

runs=()
for seed in $seeds; do
  for name in "${names[@]}"; do
    flags=(--gin_file="$RUN_FILE")
    if [ "$name" != code_a1 ]; then flags+=(--gin_file="$(overlay "$name")"); fi
    if [ "$name" = sft_tester ]; then
      model="$RESULTS/sft_tester_model"
      once "$model" sft --gin_file="$RUN_FILE" --gin_file=gin/baselines/sft_recipe.gin
      flags+=(--gin.SFT_CHECKPOINT="'$model/hf'")
    fi
    once "$RESULTS/${name}_$seed" train "${flags[@]}" --gin.SEED="$seed"
    runs+=("$RESULTS/${name}_$seed")
  done
done
act compare "${runs[@]}" --output="$RESULTS/compare"
