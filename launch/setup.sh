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

# True for a Python >= 3.12 that starts and can make virtual environments (a pyenv shim may not).
runs() { "$1" -c 'import sys, ssl, ctypes, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${CODEA1_PYTHON:-} python3.12 python3.13 python3.14 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
    if runs "$candidate"; then echo "$candidate"; return; fi
  done
  if command -v uv >/dev/null && uv python install 3.12 >&2; then uv python find 3.12; return; fi
  echo "No Python >= 3.12 with venv found. Install one (python3.12-venv, pyenv or uv), or set CODEA1_PYTHON." >&2
  return 1
}

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
