"""Keyed randomness: each draw is a function of (seed, purpose, numbers), in any process, order and repetition."""

import hashlib
import struct

import numpy as np


def _digest(seed: int, purpose: str, numbers: tuple[int, ...]) -> bytes:
    packed = struct.pack(f"<{len(numbers) + 1}q", seed, *numbers)
    return hashlib.blake2b(purpose.encode() + b"\0" + packed, digest_size=16).digest()


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    key = np.frombuffer(_digest(seed, purpose, numbers), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def integer_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of 31 bits."""
    return int.from_bytes(_digest(seed, purpose, numbers)[:4], "little") & 0x7FFFFFFF
