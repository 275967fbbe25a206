"""Train on many CPU nodes; see --help."""

from parallel_ppo.commands.train import leave, train_cluster

if __name__ == "__main__":
    leave(train_cluster())
