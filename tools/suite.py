#!/usr/bin/env python
"""Train several games and seeds in a row and write one page of results; see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import run
from parallel_ppo.commands.suite import main

if __name__ == "__main__":
    run(main)
