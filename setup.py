"""The metadata is in pyproject.toml. With PARALLEL_PPO_WHEEL=platform the wheel has the compiled kernels, so
that no compiler is needed where it is installed.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = Path(__file__).parent / "parallel_ppo" / "kernels"
TAG = "manylinux_2_27_x86_64"  # the newest symbol that the kernels take from glibc is of 2.27


class BuildWithKernels(build_py):
    def run(self) -> None:
        super().run()
        spec = importlib.util.spec_from_file_location("build_kernels", KERNELS / "build.py")
        assert spec is not None and spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        target = Path(self.build_lib) / "parallel_ppo" / "kernels" / kernels.PREBUILT
        target.mkdir(parents=True, exist_ok=True)
        for variant in kernels.VARIANTS:
            shutil.copy(kernels.build(variant), target)


class WithKernels(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """The kernels are called by ctypes: they fit every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", TAG


if os.environ.get("PARALLEL_PPO_WHEEL") == "platform":
    setup(distclass=WithKernels, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
else:
    setup()
