"""`parallel_ppo.load`: a trained policy that acts as `env.step` wants it, its normalisation included. B
observations.
"""

import contextlib
import copy
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space, iterate
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from parallel_ppo.arguments import named_run
from parallel_ppo.envs.families import spaces_of
from parallel_ppo.envs.spaces import (
    Misfit,
    action_writer,
    box_scale,
    first_leaf,
    observation_reader,
    spaces_from_text,
)
from parallel_ppo.evaluation.loaded_policy import LoadedPolicy, load_policy
from parallel_ppo.evaluation.policy_files import make_actor
from parallel_ppo.exits import InputError
from parallel_ppo.keyed import generator
from parallel_ppo.library.words import in_python
from parallel_ppo.policies.network import Past
from parallel_ppo.printable import one_line

LOADING = threading.RLock()


def load(source: str | os.PathLike[str], *, trust: bool = False, seed: int = 0) -> "Policy":
    """The policy of a run, its directory or its name in runs/ (the latest checkpoint), of a checkpoint,
    of a weights file, or `hub:user/name@revision`.

    The environment is not needed. `seed` decides which actions are drawn. Weights that another user wrote
    execute nothing; `trust` lets them import the network that they name.
    """
    place = named_run(os.path.expanduser(os.fspath(source)))
    try:
        with torch_as_in_training():
            return Policy(load_policy(place, trust=trust, plays=False), seed)
    except InputError as error:
        raise InputError(in_python(str(error))) from None


@contextlib.contextmanager
def torch_as_in_training() -> Iterator[None]:
    """What the caller made torch's default type and device is not what a network is made with."""
    with LOADING, torch.device("cpu"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class Policy:
    def __init__(self, loaded: LoadedPolicy, seed: int = 0) -> None:
        self.settings, self.spec, self.policy_sha256 = (
            loaded.settings,
            loaded.spec,
            loaded.filled.policy_sha256,
        )
        written = loaded.spec.spaces
        self.observation_space, self.action_space = (
            spaces_from_text(written) if written else spaces_of(loaded.settings.env)
        )
        self._reader = observation_reader(self.observation_space, loaded.settings.env.id)
        self._writer = action_writer(self.action_space, loaded.settings.env.id)
        self._actor = make_actor(loaded.settings, loaded.spec, loaded.filled)
        self._loaded = loaded
        self._draws = generator(seed, "acting")
        self._state: np.ndarray | None = None  # [B, S] of a recurrent policy, once it has acted
        self._starts = np.zeros(0, np.uint8)  # [B]: whose next observation starts an episode
        self._lock = threading.Lock()  # the network's working memory is one for all threads

    def __repr__(self) -> str:
        return f"<Policy for {self.settings.env.id}, {self.policy_sha256[:12]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: the same weights, and the same draws from here on."""
        return _restored, (self._loaded, self._draws, self._state, self._starts)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters by their names."""
        return {name: tensor.detach().clone() for name, tensor in self._actor.policy.state_dict().items()}

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """As Stable-Baselines3's: an action, and the state for the next call. Only recurrent policies have one; None starts
        an episode, and so does `episode_start`.
        """
        rows, is_batch = self._rows(observation)
        past = self._given_past(state, episode_start, len(rows))
        with self._lock:
            actions = self._chosen(rows, is_batch, deterministic, action_masks, past)
        return actions, state if past is None else past.state

    def act(self, observation: Any, deterministic: bool = False, action_mask: Any = None) -> Any:
        """An action for one observation, or an array of actions for a batch: drawn as in training, or the
        most likely. `action_mask` is what the environment gives as `info["action_mask"]`, where it does.
        A recurrent policy remembers its observations until `reset`.
        """
        rows, is_batch = self._rows(observation)
        with self._lock:
            past = self._own_past(len(rows))
            actions = self._chosen(rows, is_batch, deterministic, action_mask, past)
            self._starts = np.zeros(len(rows), np.uint8)
        return actions

    def reset(self, ended: Any = None) -> None:
        """The next observation starts an episode; of a batch, where `ended` is true. Only recurrent policies need it."""
        with self._lock:
            if ended is None or self._state is None:
                self._state = None
                return
            now = np.asarray(ended, bool)
            if now.shape != self._starts.shape:
                raise InputError(
                    f"ended: has the shape {now.shape}, the last batch had {len(self._starts)} observations"
                )
            self._starts = (self._starts.astype(bool) | now).astype(np.uint8)

    def _chosen(
        self, rows: np.ndarray, is_batch: bool, deterministic: bool, action_mask: Any, past: Past | None
    ) -> Any:
        actor, mask = self._actor, self._mask(action_mask, len(rows), is_batch)
        if deterministic:
            chosen = actor.most_likely(rows, mask, past)
        else:
            chosen = actor.act(rows, actor.draw_noise(self._draws, len(rows)), mask, past).action
        actions = [self._writer.write(row) for row in chosen]
        return np.stack(actions) if is_batch else actions[0]

    def _own_past(self, num_rows: int) -> Past | None:
        """The hidden state between calls of `act`."""
        if self._state is None:
            self._state, self._starts = self._actor.first_state(num_rows), np.ones(num_rows, np.uint8)
        if self._state is None:
            return None
        if len(self._state) != num_rows:
            raise InputError(
                f"observation: got {num_rows} after {len(self._state)}, which this policy remembers; call"
                " reset() before another number of them"
            )
        return Past(self._state, self._starts[None])

    def _given_past(self, state: Any, episode_start: Any, num_rows: int) -> Past | None:
        first = self._actor.first_state(num_rows)
        if first is None:
            return None
        starts = np.zeros((1, num_rows), np.uint8)
        starts[0] = 0 if episode_start is None else np.asarray(episode_start, bool)
        if state is None:
            return Past(first, starts)
        given = np.array(state, np.float32)
        if given.shape != first.shape:
            raise InputError(f"state: has the shape {given.shape}; expected {first.shape}")
        return Past(given, starts)

    def value(self, observation: Any) -> Any:
        """The return that the value network expects from here, in the units of the (normalised) training
        rewards.
        """
        rows, is_batch = self._rows(observation)
        with self._lock:
            values = self._actor.value(rows, self._own_past(len(rows)))
        return values if is_batch else float(values[0])

    def distribution(self, observation: Any, action_mask: Any = None) -> Distribution | list[Categorical]:
        """Over actions: `Categorical` for Discrete, a list of them for MultiDiscrete, `Bernoulli` for
        MultiBinary, and for a Box `Normal` in the environment's units, before its bounds are applied.
        """
        rows, is_batch = self._rows(observation)
        mask = self._mask(action_mask, len(rows), is_batch)
        with self._lock:
            past = self._own_past(len(rows))
            output = self._actor.masked(rows, mask, None if past is None else past.copy())
        outputs = output.action.clone() if is_batch else output.action[0].clone()
        action = self.spec.action
        if action.kind == "categorical":
            each = [Categorical(logits=part) for part in outputs.split(action.sizes, -1)]
            return each[0] if self.action_space.shape == () else each
        if action.kind == "bernoulli":
            return Independent(Bernoulli(logits=outputs), 1)
        assert output.log_std is not None
        half, middle = map(torch.from_numpy, box_scale(np.array(action.low), np.array(action.high)))
        scale = output.log_std.detach().exp() * half
        return Independent(Normal(outputs * half + middle, scale.expand(outputs.shape)), 1)

    def _rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Rows as the network reads them, and whether a batch was given: one dimension more than the
        space has.
        """
        leaf = first_leaf(self.observation_space)
        try:
            value = np.asarray(leaf.find(observation))
            is_batch = value.ndim == len(leaf.space.shape or ()) + 1
            each: Iterable[Any] = [observation]
            if is_batch:
                each = iterate(batch_space(self.observation_space, len(value)), observation)
            observations = list(each)
            rows = np.zeros((len(observations), *self._reader.shape), self._reader.dtype)
            for row, one in zip(rows, observations, strict=True):
                self._reader.write(one, row)
        except Misfit as problem:
            raise InputError(f"observation: got {problem}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"observation: got what is no array of numbers ({one_line(error)})") from None
        if not observations:
            raise InputError("observation: got an empty batch")
        numbers = self._reader.vector(rows)
        if not np.isfinite(numbers).all():
            wrong = numbers[~np.isfinite(numbers)][0]
            raise InputError(f"observation: contains {wrong}; expected finite numbers")
        return rows, is_batch

    def _mask(self, given: Any, num_rows: int, is_batch: bool) -> np.ndarray | None:
        """[B, K]; a policy that was trained with masks would choose what is not allowed without one."""
        if given is None:
            if self.spec.masks_actions:
                raise InputError(
                    f"action_mask: {self.settings.env.id} says which actions are allowed; give its"
                    " info['action_mask'] with each observation"
                )
            return None
        if self.spec.action.kind != "categorical":
            raise InputError(f"action_mask: {self.action_space} has no choices to allow; leave it out")
        each = list(given) if is_batch else [given]
        if len(each) != num_rows:
            raise InputError(f"action_mask: got {len(each)} for {num_rows} observations")
        try:
            return np.stack([self._writer.read_mask({"action_mask": one}) for one in each])
        except (Misfit, TypeError, ValueError) as problem:
            raise InputError(f"action_mask: got {one_line(problem)}") from None


def _restored(
    loaded: LoadedPolicy, draws: np.random.Generator, state: np.ndarray | None, starts: np.ndarray
) -> Policy:
    with torch_as_in_training():
        policy = Policy(loaded)
    policy._draws, policy._state, policy._starts = copy.deepcopy((draws, state, starts))
    return policy
