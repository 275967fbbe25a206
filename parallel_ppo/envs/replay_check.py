"""Checks before the start that replayed episodes are identical; a run is reproducible only then.

An episode is a seed and actions. Several are played in a new object, then in a second new object while other code
uses the global generators, as inside a slice; then again in the first object. Draws from the global generators are
detected by their states, because a few steps need not show an effect.
"""

import contextlib
import json
import os
import random
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile, zip_longest
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from parallel_ppo.envs.contract import ReplayCheck
from parallel_ppo.envs.machine_functions import machine_functions
from parallel_ppo.envs.single import Single
from parallel_ppo.exits import EnvironmentFault, NumbersError
from parallel_ppo.keyed import generator
from parallel_ppo.machine.descendants import Guarded

MAX_STEPS = 200  # in all episodes together
LONGER_STEPS = 5000  # if the observation did not change
MAX_EPISODES = 10  # one random end may repeat by chance, ten do not
REPLAYS = 3  # of all episodes, in a used object
MAX_SECONDS = 0.4  # for all episodes, which are played about five times
PATIENCE = 10  # seconds for the whole check
OWN_STATE_STEPS = 10

MakeEnv = Callable[[], gymnasium.Env]


class Moment(NamedTuple):
    """The result of a step or a reset."""

    observation: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    fault: str = ""
    step: int = 0
    drew_globally: bool = False


def in_a_child(make_env: MakeEnv, make_bare: MakeEnv | None, name: str) -> ReplayCheck:
    """The check in a separate, silent process, because an environment may hang, crash or start processes."""
    reader, writer = os.pipe()

    def play() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.write(writer, json.dumps(examine(make_env, make_bare, name)).encode())

    player = Guarded(play)
    try:
        os.close(writer)
        answered, _, _ = select.select([reader], [], [], PATIENCE)
        content = os.read(reader, 4096) if answered else b""
        return ReplayCheck(*json.loads(content)) if content else ReplayCheck()
    finally:
        os.close(reader)
        player.close()


def examine(make_env: MakeEnv, make_bare: MakeEnv | None, name: str) -> ReplayCheck:
    """`make_bare` makes the environment without the user's wrappers, if it has any."""
    with _single(make_env, name) as used:
        played, step_seconds = _timed(_play_several(used))
        first = played[:1] + list(takewhile(lambda moment: moment.step > 0, played[1:]))
        num_steps = len(first) - 1
        reused = _difference_when_reused(used, played, num_steps)
        tried = ReplayCheck(step_seconds, unchanged_steps=_unchanged_steps(used, played))
        tried = tried._replace(machine_functions=machine_functions(used.env))
    with _single(make_env, name) as fresh:
        again = list(islice(_play_several(fresh, is_disturbed=True), len(played)))
        differs = _difference(played, again)
        draws = "step" if any(moment.drew_globally for moment in again) else ""
        draws = draws or ("reset" if _draws_in_reset(fresh) else "")
    if differs or draws or not reused:
        return tried._replace(differs=differs, draws_globally=draws)
    with _single(make_env, name) as fresh:
        remembers = not _difference(first, _play(fresh, 1, num_steps))
    if make_bare is not None and not remembers:
        remembers = not examine(make_bare, None, name).differs_when_reused
    return tried._replace(differs_when_reused=reused, remembers=remembers)


def _unchanged_steps(used: Single, played: list[Moment]) -> int:
    """The number of steps, after more of them, if the observation never changed; else 0."""
    if len({moment.observation for moment in played}) == 1:
        played, _ = _timed(_play_several(used, num_steps=LONGER_STEPS))
    is_unchanged = len({moment.observation for moment in played}) == 1 and not played[-1].fault
    return sum(moment.step > 0 for moment in played) if is_unchanged else 0


def _difference_when_reused(used: Single, played: list[Moment], num_steps: int) -> str:
    """Replays the episodes in the used object, each after different ones, because a leftover of one episode may
    affect only some of the next.
    """
    for other in range(REPLAYS):
        list(_play(used, MAX_EPISODES + other, num_steps))
        if found := _difference(played, islice(_play_several(used), len(played))):
            return found
    return ""


@contextlib.contextmanager
def _single(make_env: MakeEnv, name: str) -> Iterator[Single]:
    single = Single(make_env, name, seed=0, index=0)
    try:
        yield single
    finally:
        single.close()


def _play_several(single: Single, is_disturbed: bool = False, num_steps: int = MAX_STEPS) -> Iterator[Moment]:
    """As many episodes as the limits allow."""
    for episode in range(MAX_EPISODES):
        for moment in _play(single, episode, num_steps, is_disturbed):
            yield moment
        num_steps -= moment.step
        if num_steps == 0 or moment.fault:
            return


def _play(single: Single, episode: int, num_steps: int, is_disturbed: bool = False) -> Iterator[Moment]:
    """The reset and at most `num_steps` steps of an episode, always with the same actions."""
    row = np.zeros(single.reader.shape, single.reader.dtype)
    actions = single.action.random_rows(generator(0, "trial"), num_steps)
    single.episode = episode - 1
    try:
        single.reset(row)
        single.check(row)
        yield Moment(zlib.crc32(row.data))
        for step, action in enumerate(actions, 1):
            before = _use_global_generators() if is_disturbed else None
            reward, terminated, truncated = single.step(single.allowed(action), row)
            drew = is_disturbed and _global_state() != before
            single.check(row)
            yield Moment(zlib.crc32(row.data), reward, terminated, truncated, step=step, drew_globally=drew)
            if terminated or truncated:
                return
    except (EnvironmentFault, NumbersError) as error:
        yield Moment(0, fault=str(error))


def _timed(moments: Iterator[Moment]) -> tuple[list[Moment], float]:
    """The moments within the time limit, and the median duration of a step."""
    found, times = [], [time.perf_counter()]
    for moment in moments:
        found.append(moment)
        times.append(time.perf_counter())
        if times[-1] - times[0] > MAX_SECONDS:
            break
    return found, float(np.median(np.diff(times[1:] if len(times) > 2 else times)))


def _draws_in_reset(single: Single) -> bool:
    """True if a reset draws from the global generators without seeding them first."""
    row, states = np.zeros(single.reader.shape, single.reader.dtype), []
    for _ in range(2):
        states.append(_use_global_generators())
        single.episode = -1
        try:
            single.reset(row)
        except (EnvironmentFault, NumbersError):
            return False
        states.append(_global_state())
    return any(before != after and after != again for before, after, _, again in zip(*states, strict=True))


def _use_global_generators() -> tuple[object, ...]:
    """Draws from all of them, as other environments of a slice may; returns their states."""
    random.random()
    np.random.random()  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].rand(1)
    return _global_state()


def _global_state() -> tuple[object, ...]:
    _, keys, *position = np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    of_torch = b"" if torch is None else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), (np.asarray(keys).tobytes(), *position), of_torch


def _difference(expected: list[Moment], found: Iterable[Moment]) -> str:
    """The first difference; moments after a fault are ignored."""
    for pair in zip_longest(expected, found, fillvalue=Moment(0, terminated=True)):
        if any(moment.fault for moment in pair):
            return ""
        for name, value, again in zip(("observation", "reward", "end", "end"), *pair, strict=False):
            if value != again:
                return f"another {name} at step {max(moment.step for moment in pair)}"
    return ""


def restores_itself(make_env: MakeEnv, name: str) -> bool:
    """True if a copy continues like the original after `set_state`, so the methods mean what we expect."""
    with _single(make_env, name) as original, _single(make_env, name) as copy:
        row, other_row = (np.zeros(original.reader.shape, original.reader.dtype) for _ in range(2))
        actions = original.action.random_rows(generator(0, "trial"), 2 * OWN_STATE_STEPS)
        try:
            original.reset(row)
            list(_advance(original, actions[:OWN_STATE_STEPS], row))
            copy.set_state(original.get_state(row), other_row)
            rest = actions[OWN_STATE_STEPS:]
            return list(_advance(original, rest, row)) == list(_advance(copy, rest, other_row))
        except Exception:  # the methods mean something else
            return False


def _advance(single: Single, actions: np.ndarray, row: np.ndarray) -> Iterator[Any]:
    for action in actions:
        reward, *end = single.step(single.allowed(action), row)
        if any(end):
            single.reset(row)
        yield zlib.crc32(row.data), reward, end
