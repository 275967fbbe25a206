"""Imported first by root scripts: switches to the Python of `venv/` if requirements are missing, and fixes the
hash seed.
"""

import importlib.util
import os
import sys
from pathlib import Path

from parallel_ppo.child import restart_with_fixed_hash_seed

ROOT = Path(__file__).absolute().parents[1]
PYTHON = ROOT / "venv" / "bin" / "python"
MISSING = [name for name in ("torch", "pydantic", "gymnasium", "rich") if not importlib.util.find_spec(name)]

if MISSING:
    if PYTHON.exists() and Path(sys.prefix).resolve() != PYTHON.parents[1].resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    print(f"error: {sys.executable}: has no module {MISSING[0]!r}; run {ROOT / 'setup.sh'}", file=sys.stderr)
    sys.exit(2)

SCRIPT = Path(sys.argv[0]).absolute()
if SCRIPT.parent == ROOT and SCRIPT.suffix == ".py":  # not for tools, tests and `python -c`
    restart_with_fixed_hash_seed()
