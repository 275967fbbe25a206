"""Train with worker processes on all cores; see --help."""

from parallel_ppo.commands.train import leave, train_parallel

if __name__ == "__main__":
    leave(train_parallel())
