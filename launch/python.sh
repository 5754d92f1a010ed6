# Finds the interpreter that a script makes its environment with; sourced by setup.sh and sandbox.sh.
#
#   CODEA1_PYTHON   the first to try
# shellcheck shell=bash

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
