"""Train with worker processes on all cores; see --help."""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.train import leave, train_parallel

if __name__ == "__main__":
    leave(train_parallel())
