"""Train in one process, with logs and checkpoints in places of their own; see --help."""

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.train import leave, train_ppo_sequential

if __name__ == "__main__":
    leave(train_ppo_sequential())
