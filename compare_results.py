#!/usr/bin/env python
"""Compare sequential and parallel runs, or any labelled ones: speed, returns, memory, and whether the
bits agree.
"""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import run
from parallel_ppo.reports.compare_command import main

if __name__ == "__main__":
    run(main)
