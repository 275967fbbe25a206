"""Where an iteration starts: the carried fields of the table of memory, taken, packed, dealt out and put
back. E envs.

A packed field is whole rows, or (with `used_length`) the used part of each row, one after the other.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from parallel_ppo.storage.array_files import bytes_of
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.memory_table import Field

Arrays = dict[str, np.ndarray]
ALL = slice(None)


class Environments(NamedTuple):
    """All environments at the start of an iteration, in shared memory: referred to, not copied."""

    fields: list[Field]
    rows: Arrays  # [E, ...] by the name of the field

    @classmethod
    def at(cls, memory: Memory, iteration: int) -> "Environments":
        """The slot that `iteration` starts from. The iteration itself leaves it alone."""
        fields, slot = [field for field in memory.table.values() if field.carried], memory.slot(iteration)
        return cls(fields, {field.name: getattr(memory, field.name)[slot] for field in fields})

    def pack(self, columns: slice = ALL) -> Arrays:
        """Some environments as arrays that hold no unused byte."""
        packed = {}
        for field in self.fields:
            own = self.rows[field.name][columns]
            if field.used_length:
                lengths = self.rows[field.used_length][columns]
                packed[field.name] = np.concatenate([r[:n] for r, n in zip(own, lengths, strict=True)])
            else:
                packed[field.name] = np.ascontiguousarray(own)
        return packed

    def unpack(self, packed: Arrays, columns: slice = ALL) -> None:
        for field in self.fields:
            own = self.rows[field.name][columns]
            if field.used_length:
                lengths = packed[field.used_length]
                for row, end, length in zip(own, np.cumsum(lengths), lengths, strict=True):
                    row[:length] = packed[field.name][end - length : end]
            else:
                own[...] = packed[field.name]

    def misfit(self, packed: Arrays) -> str | None:
        """What is wrong with packed environments that are to go here, or None."""
        for field in self.fields:
            found, own = packed.get(field.name), self.rows[field.name]
            has_shape = found is not None and (field.used_length or found.shape == own.shape)
            if found is None or not has_shape or found.dtype != own.dtype:
                return f"{field.name} does not fit this run"
            if not np.isfinite(found).all():
                return f"{field.name} holds impossible numbers"
        for field in self.fields:
            if field.used_length:
                lengths, data = packed[field.used_length], packed[field.name]
                in_range = ((lengths >= 0) & (lengths <= self.rows[field.name].shape[1])).all()
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
    """A snapshot from a file, whose environments are packed."""

    counters: dict[str, Any]
    arrays: Arrays
    environments: Arrays
