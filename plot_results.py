#!/usr/bin/env python
"""Plot the curves of one or several runs over steps and over wall time."""

from parallel_ppo.reports import command_line
from parallel_ppo.reports.plot_command import main

if __name__ == "__main__":
    command_line.run(main)
