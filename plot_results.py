#!/usr/bin/env python
"""Plot the curves of one or several runs over steps and over wall time."""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.arguments import run
from parallel_ppo.reports.plot_command import main

if __name__ == "__main__":
    run(main)
