#!/usr/bin/env python
"""Compare sequential and parallel runs, or any labelled ones: speed, returns, memory, and whether the bits agree."""

from parallel_ppo.reports import command_line
from parallel_ppo.reports.compare_command import main

if __name__ == "__main__":
    command_line.run(main)
