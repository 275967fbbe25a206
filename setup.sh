#!/usr/bin/env bash
# Makes venv/ with everything the project needs, and tries it. Safe to run again: a finished set-up is left as it is.
#   PYTHON=python3.12 ./setup.sh        choose the interpreter (3.10 to 3.12; Procgen has no build for 3.13)
#   TORCH_INDEX_URL=URL ./setup.sh      take torch from this index, such as one with CPU builds
set -euo pipefail
cd "$(dirname "$0")"

fail() { echo "setup: $1" >&2; exit 1; }

find_python() {
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.10, 3.11 or 3.12 found${PYTHON:+ at $PYTHON}; install one, or name it: PYTHON=/path/to/python3.11 ./setup.sh"
}

stamp="venv/.ready-$(cat pyproject.toml requirements.txt requirements-dev.txt setup.sh | cksum | cut -d' ' -f1)"
if [ -f "$stamp" ] && venv/bin/python -c '' 2>/dev/null; then
  # Another `pip install` may have replaced a version, such as NumPy 1 by NumPy 2, which breaks Procgen.
  if conflicts=$(venv/bin/python -m pip --disable-pip-version-check check 2>/dev/null); then
    touch venv/.ready
    echo "setup: venv/ is up to date"
    exit 0
  fi
  echo "setup: repairing venv/: $(head -n 1 <<< "$conflicts")"
fi

if ! venv/bin/python -c '' 2>/dev/null; then
  python=$(find_python)
  echo "setup: making venv/ with $("$python" --version)"
  "$python" -m venv venv || fail "cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"
fi

pip() { venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
hint="check the network and disk space, then run ./setup.sh again"
echo "setup: installing the requirements (a few minutes the first time)"
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  pip install --index-url "$TORCH_INDEX_URL" "$(grep -o 'torch==[0-9.]*' pyproject.toml)" || fail "torch could not be installed from TORCH_INDEX_URL; $hint"
fi
pip install -r requirements.txt -r requirements-dev.txt || fail "a requirement could not be installed (see above); $hint"

venv/bin/python -c 'import torch, gymnasium, numpy; import parallel_ppo' || fail "the installed packages do not load (see above)"
if [ -f parallel_ppo/kernels/build.py ]; then
  venv/bin/python -m parallel_ppo.kernels.build || echo "setup: no native kernels; torch is used instead"
fi
rm -f venv/.ready-*
touch "$stamp" venv/.ready
echo "setup: done. Activate it with: source venv/bin/activate"
