"""Train on many CPU nodes; see --help."""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.train import leave, train_cluster

if __name__ == "__main__":
    leave(train_cluster())
