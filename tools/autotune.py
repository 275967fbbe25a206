#!/usr/bin/env python
"""Find the workers and the pinning that train fastest on this machine; see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import run
from parallel_ppo.commands.tune import main

if __name__ == "__main__":
    run(main)
