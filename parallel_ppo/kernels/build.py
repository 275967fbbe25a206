"""Compiles the kernels with the system's C compiler: `python -m parallel_ppo.kernels.build`.

A library's name carries a hash of its sources and flags, so a changed source is never mistaken for its old library. Each process
compiles into a file of its own and renames it, so any number of processes may build at once.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
COMMON_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-predictive-commoning",
    "-Wall",
    "-Wextra",
)
"""No contraction: which operations are fused is written in the source, so that no compiler version changes a bit.
No predictive commoning: gcc would carry pixels from one register to the next instead of loading them again."""

VARIANTS = {
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mprefer-vector-width=512",
    ),
    "avx2": ("-mavx2", "-mfma"),
}
"""The instruction sets, best first, with their flags."""


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


def cache_directory() -> Path:
    chosen = os.environ.get("PARALLEL_PPO_KERNEL_CACHE")
    return Path(chosen) if chosen else Path(__file__).parent / "cache"


def library_path(variant: str) -> Path:
    digest = hashlib.sha256(" ".join(COMMON_FLAGS + VARIANTS[variant]).encode())
    for source in sorted(SOURCES[0].parent.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return cache_directory() / f"kernels-{variant}-{digest.hexdigest()[:16]}.so"


def find_compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise BuildError("no C compiler found (set CC, or install gcc or clang)")


def build(variant: str) -> Path:
    """The variant's library, compiled if it is not there yet."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"the kernels are written for x86-64, not {platform.machine()}")
    library = library_path(variant)
    if library.exists():
        return library
    compiler = find_compiler()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=library.stem, suffix=".tmp", dir=library.parent)
    except OSError as error:
        raise BuildError(
            f"cannot write the kernel cache {library.parent}: {error.strerror} (set PARALLEL_PPO_KERNEL_CACHE)"
        ) from error
    os.close(handle)
    try:
        command = [compiler, *COMMON_FLAGS, *VARIANTS[variant], *map(str, SOURCES), "-lm", "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        Path(temporary).chmod(0o755)
        Path(temporary).rename(library)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(description="compile the compute kernels for this machine")
    parser.add_argument("--variant", choices=[*VARIANTS, "all"], default="all")
    wanted = parser.parse_args().variant
    try:
        for variant in VARIANTS if wanted == "all" else [wanted]:
            print(f"{variant}: {build(variant)}")
    except BuildError as error:
        print(f"kernels not built, torch will be used: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
