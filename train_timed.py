"""Train in one process; see --help."""

import sys

from parallel_ppo.cli import train_sequential

if __name__ == "__main__":
    sys.exit(train_sequential())
