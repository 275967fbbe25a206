"""Compiles the kernels with the system's C compiler: `python -m parallel_ppo.kernels.build`.

A library's name carries a hash of its sources and flags, so a changed source is never mistaken for its
old library. Processes that start together compile it once, under a lock; it is written to another name and
renamed, so it is never half there.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
"""No contraction: which operations are fused is written in the source, so no compiler changes a bit.
No predictive commoning: gcc would carry pixels from register to register instead of loading them again."""

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


PREBUILT = "prebuilt"  # folder of the libraries that a wheel brings
OTHERS_MAY_WRITE = 0o022
SEAL_BYTES = 32


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


def cache_directory() -> Path:
    """A source tree keeps its libraries in itself, an installed package in the user's cache."""
    chosen = os.environ.get("PARALLEL_PPO_KERNEL_CACHE")
    if chosen:
        return Path(chosen)
    package = Path(__file__).parent
    if (package.parents[1] / "pyproject.toml").is_file() and os.access(package, os.W_OK):
        return package / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallel_ppo"


def source_digest(variant: str) -> str:
    """A hash of everything that decides the bits of the kernels."""
    digest = hashlib.sha256(" ".join(COMMON_FLAGS + VARIANTS[variant]).encode())
    for source in sorted(SOURCES[0].parent.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def library_path(variant: str) -> Path:
    return cache_directory() / f"kernels-{variant}-{source_digest(variant)}.so"


def find_compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise BuildError("no C compiler found (set CC, or install gcc or clang)")


def load(variant: str) -> ctypes.CDLL:
    """The variant's library. One that does not load (damaged, from another system) is compiled again,
    once.
    """
    try:
        library = build(variant)
        try:
            return ctypes.CDLL(str(library))
        except OSError:
            library.unlink(missing_ok=True)
            return ctypes.CDLL(str(build(variant)))
    except OSError as error:
        raise BuildError(
            f"the compiled kernels cannot be used: {error} (set PARALLEL_PPO_KERNEL_CACHE)"
        ) from None


def build(variant: str) -> Path:
    """The variant's library, compiled if it is not there yet, is not whole, or is not this user's own."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"the kernels are written for x86-64, not {platform.machine()}")
    library = library_path(variant)
    prebuilt = Path(__file__).parent / PREBUILT / library.name
    if prebuilt.is_file() and _is_sealed(prebuilt):
        return prebuilt
    try:
        _claim(library.parent)
        if not _is_whole(library):
            with _one_at_a_time(library.parent):
                if not _is_whole(library):
                    _compile(variant, library)
    except OSError as error:
        raise BuildError(
            f"cannot write the kernel cache {library.parent}: {error.strerror} (set"
            " PARALLEL_PPO_KERNEL_CACHE)"
        ) from None
    return library


def _claim(folder: Path) -> None:
    """Users who can write here decide what this process executes. The mode of a folder that exists is its
    owner's choice: it is refused, never changed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not _is_own(folder):
        raise BuildError(
            f"other users can write to the kernel cache {folder}; set PARALLEL_PPO_KERNEL_CACHE to a folder"
            " that only you can write to"
        )


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that start together compile once. A file system without locks lets each compile its own."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_own(path: Path) -> bool:
    """There, and neither made nor to be changed by anyone but this user and the system's."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & OTHERS_MAY_WRITE


def _is_whole(library: Path) -> bool:
    return _is_own(library) and _is_sealed(library)


def _is_sealed(library: Path) -> bool:
    """Loading a truncated library can end the process, so its checksum follows its last byte."""
    data = library.read_bytes()
    return hashlib.sha256(data[:-SEAL_BYTES]).digest() == data[-SEAL_BYTES:]


def _compile(variant: str, library: Path) -> None:
    compiler = find_compiler()
    print(f"compiling the kernels ({variant}), once, for about 30 s: {library.parent}", file=sys.stderr)
    handle, temporary = tempfile.mkstemp(prefix=library.stem, suffix=".tmp", dir=library.parent)
    try:
        command = [compiler, *COMMON_FLAGS, *VARIANTS[variant], *map(str, SOURCES), "-lm", "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        with open(temporary, "r+b") as file:
            file.write(hashlib.sha256(file.read()).digest())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o755)
        Path(temporary).rename(library)
    finally:
        os.close(handle)
        Path(temporary).unlink(missing_ok=True)


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
