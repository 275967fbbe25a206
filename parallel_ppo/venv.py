"""Imported first by the scripts beside `venv/`: goes on with its Python where the one in use lacks the
requirements, and with a fixed hash seed.
"""

import importlib.util
import os
import sys
from pathlib import Path

from parallel_ppo.hash_seed import restart_with_fixed_hash_seed

ROOT = Path(__file__).absolute().parents[1]
PYTHON = ROOT / "venv" / "bin" / "python"
MISSING = [name for name in ("torch", "pydantic", "gymnasium", "rich") if not importlib.util.find_spec(name)]

if MISSING:
    if PYTHON.exists() and Path(sys.prefix).resolve() != PYTHON.parents[1].resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    print(
        f"error: {sys.executable}: has no module {MISSING[0]!r}; run {ROOT / 'setup.sh'} once, and then this"
        " again",
        file=sys.stderr,
    )
    sys.exit(2)

if Path(sys.argv[0]).absolute().parent == ROOT:  # a tool, or a test that imports one, is left alone
    restart_with_fixed_hash_seed()
