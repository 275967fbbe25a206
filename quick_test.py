"""Check the installation part by part, in under a minute."""

import sys

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.doctor import main

if __name__ == "__main__":
    sys.exit(main())
