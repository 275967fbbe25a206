"""The start of an iteration, copied and put back: the `Start` arrays and the saved state. E envs.

A packed array is whole rows, or (with `used`) the used part of each row, one after the other.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import Array, Start
from parallel_ppo.storage.array_files import bytes_of

Arrays = dict[str, np.ndarray]
ALL = slice(None)


class Environments(NamedTuple):
    """All environments at the start of an iteration, in shared memory: referred to, not copied."""

    declared: list[Array]
    rows: Arrays  # [E, ...] by name

    @classmethod
    def at(cls, memory: SharedMemory, iteration: int) -> "Environments":
        """The slot that `iteration` starts from. The iteration itself leaves it alone."""
        declared, slot = [one for one in memory.table.values() if one.kind is Start], memory.slot(iteration)
        return cls(declared, {one.name: getattr(memory, one.name)[slot] for one in declared})

    def pack(self, columns: slice = ALL) -> Arrays:
        """Some environments as arrays that hold no unused byte."""
        packed = {}
        for one in self.declared:
            own = self.rows[one.name][columns]
            if one.used:
                lengths = self.rows[one.used][columns]
                packed[one.name] = np.concatenate([r[:n] for r, n in zip(own, lengths, strict=True)])
            else:
                packed[one.name] = np.ascontiguousarray(own)
        return packed

    def unpack(self, packed: Arrays, columns: slice = ALL) -> None:
        for one in self.declared:
            own = self.rows[one.name][columns]
            if one.used:
                lengths = packed[one.used]
                for row, end, length in zip(own, np.cumsum(lengths), lengths, strict=True):
                    row[:length] = packed[one.name][end - length : end]
            else:
                own[...] = packed[one.name]

    def misfit(self, packed: Arrays) -> str | None:
        """The problem with packed environments that are to go here, or None."""
        for one in self.declared:
            found, own = packed.get(one.name), self.rows[one.name]
            has_shape = found is not None and (one.used or found.shape == own.shape)
            if found is None or not has_shape or found.dtype != own.dtype:
                return f"{one.name} does not fit this run"
            if not np.isfinite(found).all():
                return f"{one.name} holds impossible numbers"
        for one in self.declared:
            if one.used:
                lengths, data = packed[one.used], packed[one.name]
                in_range = ((lengths >= 0) & (lengths <= self.rows[one.name].shape[1])).all()
                if data.ndim != 1 or not in_range or lengths.sum() != len(data):
                    return "the environments' states do not add up"
        if (packed["carry_start"] > 1).any():
            return "the observations to start from are impossible"
        return None

    @property
    def num_bytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows.values())


class Snapshot(NamedTuple):
    """The state at the start of an iteration, as plain arrays."""

    counters: dict[str, Any]
    arrays: Arrays
    environments: Environments

    def sha256(self) -> str:
        """Over the bytes of everything that is carried into the next iteration, in the order of names."""
        digest = hashlib.sha256()
        for arrays in (self.arrays, self.environments.pack()):
            for name, array in sorted(arrays.items()):
                digest.update(f"{name}{array.dtype}{array.shape}".encode())
                digest.update(bytes_of(array))
        return digest.hexdigest()


class Saved(NamedTuple):
    """A snapshot from a file; its environments are packed."""

    counters: dict[str, Any]
    arrays: Arrays
    environments: Arrays
