#!/usr/bin/env bash
# Sets up a virtual environment with the base install (no JAX) and serves the sandbox from it.
# Running it again skips what is there. Arguments go to `codea1-sandbox serve`.
#
#   launch/sandbox.sh                                      loopback, port 50061
#   launch/sandbox.sh --slots 9 --metrics-address 127.0.0.1:9464
#   launch/sandbox.sh --address 0.0.0.0:50061 --tls-cert C --tls-key K --token-file T
#
#   CODEA1_PYTHON          interpreter to use (default: the first Python >= 3.12 that really runs)
#   CODEA1_SANDBOX_VENV    the environment (default: .venv-sandbox beside launch/; not below /tmp)
#   CODEA1_SANDBOX_EXTRAS  packages that programs may import, for example "numpy" (default: none)
#
# Tried: Debian 12, root, CPython 3.12, tier A-root. Not tried: other distributions, arm64.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${CODEA1_SANDBOX_VENV:-$ROOT/.venv-sandbox}
EXTRAS=${CODEA1_SANDBOX_EXTRAS:-}
source "$ROOT/launch/python.sh"

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

setup() {
  local wanted python stamp="$VENV/.codea1-installed"
  wanted="$EXTRAS $(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum)"
  if [ -x "$VENV/bin/codea1-sandbox" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  if ! [ -x "$VENV/bin/python" ]; then
    python=$(find_python)
    echo "Making $VENV with $("$python" --version)" >&2
    "$python" -m venv "$VENV"
  fi
  # shellcheck disable=SC2086  # several packages
  (cd "$ROOT" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable . $EXTRAS)
  echo "$wanted" >"$stamp"
}

if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  usage
  exit 0
fi
setup
exec "$VENV/bin/codea1-sandbox" serve "$@"
