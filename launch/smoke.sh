#!/usr/bin/env bash
# Sets up and runs the whole adversarial loop on the embedded problems and the tiny checkpoint:
# coder and tester train against each other through a real sandbox service. Some minutes on
# two cores after installing. Arguments go to `codea1 train`, for example --gin.SEED=1.
#
#   RUN_DIR   run folder (default: runs/smoke). An unfinished run in it is continued.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

RUN_DIR=${RUN_DIR:-runs/smoke}
"$VENV/bin/codea1" train --gin_file=gin/runs/smoke.gin --run_dir="$RUN_DIR" "$@"
"$VENV/bin/codea1" report "$RUN_DIR"
echo
echo "Report: $RUN_DIR/report.html (curves, every code against every test), report.md (table), report.png (plot)"
