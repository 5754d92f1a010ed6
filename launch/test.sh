#!/usr/bin/env bash
# Sets up and runs the checks and tests. Arguments go to pytest; `--slow` adds the slow ones.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

pytest_args=()
for arg in "$@"; do
  if [ "$arg" = --slow ]; then pytest_args+=(-m "not real_model"); else pytest_args+=("$arg"); fi
done

"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
"$VENV/bin/mypy"
exec "$VENV/bin/python" -m pytest -n 2 --dist loadfile --durations 15 "${pytest_args[@]}"
