"""Record episodes of a trained policy as MP4 and GIF; see --help."""

import sys

import parallel_ppo.venv  # noqa: F401
from parallel_ppo.commands.play import play_episodes

if __name__ == "__main__":
    sys.exit(play_episodes())
