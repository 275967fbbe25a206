"""`python -m parallel_ppo`: the command `parallel-ppo`."""

import sys

from parallel_ppo.commands.main import main

sys.exit(main())
