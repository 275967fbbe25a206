"""Which level a Procgen environment opens next: two numbers in its saved state.

Procgen draws a level between the two when an episode ends, within that step. The state begins with a version,
the game's name, twelve options and the size of a grid, integers of four bytes; then come the two numbers.
"""

import struct
from collections.abc import Mapping

from parallel_ppo.envs.contract import SliceEnv

INTEGER = struct.Struct("<i")
BOUNDS = struct.Struct("<ii")
NUM_OPTIONS = 12


def set_next_levels(env: SliceEnv, levels: Mapping[int, int]) -> None:
    """`levels` by environment of the slice; the others keep theirs. Nothing else changes."""
    states = env.get_state()
    for index, level in levels.items():
        states[index] = with_next_level(states[index], level)
    env.set_state(states)


def with_next_level(state: bytes, level: int) -> bytes:
    offset = _bounds_offset(state)
    return state[:offset] + BOUNDS.pack(level, level + 1) + state[offset + BOUNDS.size :]


def level_bounds(state: bytes) -> tuple[int, int]:
    """First level, and the one after the last."""
    first, end = BOUNDS.unpack_from(state, _bounds_offset(state))
    return first, end


def _bounds_offset(state: bytes) -> int:
    (name_length,) = INTEGER.unpack_from(state, INTEGER.size)
    return 2 * INTEGER.size + name_length + (NUM_OPTIONS + 1) * INTEGER.size
