"""The shorter import of torch."""

import subprocess
import sys

PROGRAM = """
import sys
from parallel_ppo.lazy_compiler import import_without_compiler
import_without_compiler()
assert "torch._meta_registrations" not in sys.modules and "torch._decomp" not in sys.modules
import torch
compiled = torch.compile(lambda x: torch.nn.functional.conv2d(x, torch.ones(1, 1, 2, 2)).sum(), backend="eager")
assert compiled(torch.ones(1, 1, 3, 3)).item() == 16
assert "torch._meta_registrations" in sys.modules
"""


def test_the_compiler_still_works() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
