"""Train in one process; see --help."""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.train import leave, train_sequential

if __name__ == "__main__":
    leave(train_sequential())
