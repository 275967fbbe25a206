"""Train on many CPU nodes; see --help."""

import sys

from parallel_ppo.cli import train_cluster

if __name__ == "__main__":
    sys.exit(train_cluster())
