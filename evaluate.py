"""How good a trained policy is, on its levels and on others; see --help."""

import sys

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.evaluate import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
