"""Declarations of shared arrays: each once, as an attribute of a table, with its type, place and use.

    class Rewards(State):
        running = array("E", "float64", saved="rewards.running")

The base class says how long an array lives: a `Rollout` array exists once for every rollout that is kept, a
`Start` array once for every start of an iteration that is kept, a `State` array once for the run. `Scratch` is
never saved. Layout, batches, exchange between nodes, snapshots, checkpoints, versions and the estimates of
memory and disk follow from the declarations. At run time the attributes are NumPy arrays; all tables of a run
share one namespace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.settings.schema import Settings

Size = int | tuple[int, ...]
Axes = Mapping[str, Any]  # sizes by the words of `dims`; flags; dtypes that the environment decides

f4, f8, u1, i8 = "float32", "float64", "uint8", "int64"


@dataclass(frozen=True)
class Array:
    """A declaration. The first group is written by hand, the second follows from a run's settings."""

    dims: str  # words: names of sizes, sizes plus one ("T+1"), or numbers
    dtype: str
    written: str = ""  # by which phase; it is poisoned before that in tests
    when: str = ""  # a flag among the sizes: the array is empty without it
    sampled: bool = False  # of a rollout: microbatches hold its samples
    gathered: bool | str = False  # of a rollout: every node needs all columns (or only with this flag)
    by_node: bool = False  # with several nodes, each touches its own part only
    sparse: bool = False  # reserved but not touched until needed: never locked or pre-faulted
    used: str = (
        ""  # the array that says how much of a row (or of the whole array) is used; only that is saved
    )
    saved: str = ""  # name in a checkpoint (arrays of a `Start` have their own)
    versioned: str = ""  # name of its copies, one for each version of the parameters; saved with them
    initial: float = 0.0
    least: float = -np.inf  # a saved value below this is damaged

    name: str = ""
    kind: type = object
    shape: tuple[int, ...] = ()  # with the leading axis of rollouts, starts or versions
    place: str = "dense"

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def array(dims: str, dtype: str, **options: Any) -> np.ndarray:
    """A declaration, for type checkers an array: that is what instances have."""
    return cast(Any, Array(dims, dtype, **options))


class Table:
    @classmethod
    def is_needed(cls, settings: Settings) -> bool:
        return True

    @classmethod
    def axes(cls, settings: Settings, spec: EnvSpec) -> Axes:
        """Sizes that only this table needs."""
        return {}


class Rollout(Table):
    """[rollout, T(+1), E, ...]; its instances are single rollouts."""


class Start(Table):
    """[slot, E, ...]: where an iteration starts; saved with the environments."""


class State(Table):
    """One of each in a run; arrays with a `saved` name are saved."""


class Scratch(Table):
    """Never saved."""


def resolve(tables: Sequence[type[Table]], settings: Settings, spec: EnvSpec, axes: Axes) -> list[Array]:
    """Every array of a run with its shape and place."""
    sizes, found = settings.sizes, list[Array]()
    needed = [table for table in tables if table.is_needed(settings)]
    for table in needed:
        axes = {**axes, **table.axes(settings, spec)}
    leading = {Rollout: (sizes.num_rollouts,), Start: (sizes.num_slots,), State: (), Scratch: ()}
    for table in needed:
        kind = next(base for base in leading if issubclass(table, base))
        for name, declared in declarations(table):
            own = _dims(declared, axes)
            is_sparse = declared.sparse or (declared.by_node and settings.cluster.nnodes > 1)
            in_file = kind is Rollout and settings.hardware.buffers == "file"
            gathered, sampled = declared.gathered, declared.sampled
            one = replace(
                declared,
                name=name,
                kind=kind,
                shape=(*leading[kind], *own),
                dtype=str(axes.get(declared.dtype, declared.dtype)),
                sampled=sampled and 0 not in own,
                gathered=bool(axes[gathered] if isinstance(gathered, str) else gathered) and 0 not in own,
                place="file" if in_file else "sparse" if is_sparse else "dense",
            )
            found.append(one)
            if declared.versioned and sizes.num_versions:
                copies = sizes.num_versions, *own
                found.append(
                    replace(
                        one, name=declared.versioned, shape=copies, saved=declared.versioned, versioned=""
                    )
                )
    names = [one.name for one in found]
    assert len(names) == len(set(names)), "an array is declared twice"
    return found


def declarations(table: type[Table]) -> Iterator[tuple[str, Array]]:
    for name, value in vars(table).items():
        if isinstance(value, Array):
            yield name, value


def _dims(declared: Array, axes: Axes) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    for word in declared.dims.split():
        name, _, more = word.partition("+")
        size = int(name) if name.isdigit() else axes[name]
        found += size if isinstance(size, tuple) else (size + int(more or 0),)
    return tuple(0 for _ in found) if declared.when and not axes[declared.when] else found


def private(table: Any, **sizes: Any) -> Any:
    """An instance of a table with new arrays, for computing without a run."""
    made = table()
    for name, declared in declarations(table):
        setattr(made, name, np.full(_dims(declared, sizes), declared.initial, declared.dtype))
    return made
