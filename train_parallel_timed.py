"""Train with worker processes on all cores; see --help."""

import sys

from parallel_ppo.cli import train_parallel

if __name__ == "__main__":
    sys.exit(train_parallel())
