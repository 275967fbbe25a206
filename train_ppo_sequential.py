"""Train in one process, with logs and checkpoints in places of their own; see --help."""

import sys

from parallel_ppo.cli import train_ppo_sequential

if __name__ == "__main__":
    sys.exit(train_ppo_sequential())
