#!/usr/bin/env bash
# Makes .venv with everything the CPU run and the tests need. Sourced by smoke.sh and test.sh;
# running it again does nothing until pyproject.toml or constraints.txt change.
#
#   CODEA1_PYTHON   interpreter to use (default: the first Python >= 3.12 that really runs)
#   CODEA1_EXTRAS   extras to install (default: dev; on a TPU VM: tpu)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/.venv"
EXTRAS=${CODEA1_EXTRAS:-dev}
source "$ROOT/launch/python.sh"

setup() {
  local wanted stamp="$VENV/.codea1-installed" python
  wanted="$EXTRAS $(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum)"
  if [ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  if ! [ -x "$VENV/bin/python" ] || ! runs "$VENV/bin/python"; then
    python=$(find_python)
    echo "Making .venv with $("$python" --version)"
    "$python" -m venv --clear "$VENV"
  fi
  echo "Installing codea1-jax[$EXTRAS] (a few minutes the first time)"
  (cd "$ROOT" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable ".[$EXTRAS]")
  echo "$wanted" >"$stamp"
}

setup
if [ "${BASH_SOURCE[0]}" = "$0" ]; then echo "Ready: $VENV"; fi
