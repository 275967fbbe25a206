"""What a worker does: open its slices, collect, compute gradients of lanes, reduce blocks of parameters.

The same object serves inside a worker process and in the inline pool of the sequential trainer. Every phase is idempotent:
its inputs and outputs never overlap, so it can be asked again. T steps, E envs, B samples of a lane.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_ppo.algorithms import optimizers, ppo
from parallel_ppo.algorithms.ppo_gradient import Batch, Weights
from parallel_ppo.envs.build import make_slice
from parallel_ppo.envs.contract import EnvSpec, SliceEnv
from parallel_ppo.exits import NumbersError
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads
from parallel_ppo.policies.native_cnn import NativeCnn
from parallel_ppo.policies.policy import Output, Policy, bind, views
from parallel_ppo.policies.stacked_mlp import StackedMlp
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing
from parallel_ppo.workers.memory import BLOCK, Memory


class Open(NamedTuple):
    """Make a slice's environments and put them where iteration `iteration` starts."""

    slice_index: int
    iteration: int
    fresh: bool  # no saved state: reset, and publish the first one


class Collect(NamedTuple):
    slice_index: int
    iteration: int


class Gradient(NamedTuple):
    lane: int
    iteration: int
    epoch: int
    minibatch: int
    advantage_mean: float
    advantage_scale: float
    clip_range: float


class Reduce(NamedTuple):
    first_block: int
    end_block: int
    first_lane: int
    end_lane: int


class Evaluate(NamedTuple):
    """Play some episodes that never enter a gradient (see `playing.py`)."""

    part: int
    slice_index: int
    iteration: int


Task = Open | Collect | Gradient | Reduce | Evaluate


class Worker:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: Memory) -> None:
        self.settings, self.spec, self.memory = settings, spec, memory
        self.shape = settings.shape
        self.policy = Policy(settings, spec)
        bind(self.policy, memory.tensor("parameters"))
        self.parameters = list(self.policy.parameters())
        self.written = self._written(memory.tensor("parameters"))
        self.network: Policy | StackedMlp = (
            self.written if isinstance(self.written, StackedMlp) else self.policy
        )
        self.slices: dict[int, SliceEnv] = {}
        self.lane_views: dict[int, Any] = {}
        self.order_cache: dict[tuple[int, int, int], np.ndarray] = {}
        flat = self.shape.num_steps * self.shape.num_envs
        self.rows = {
            name: memory.tensor(name)[: self.shape.num_steps].reshape(flat, *memory.table[name].shape[2:])
            for name in ("observation", "action", "log_prob", "value", "advantage", "target_return")
        }
        self.observation_mean = memory.tensor("observation_mean")
        self.observation_scale = memory.tensor("observation_scale")

    def _written(self, parameters: torch.Tensor) -> StackedMlp | NativeCnn | None:
        """The policy with its backward pass written out, where it has one."""
        if self.policy.value_trunk is not None:
            return StackedMlp(self.policy, parameters)
        return None if self.policy.native is None else NativeCnn(self.policy, parameters)

    def run(self, task: Task) -> bool:
        """Performs a task. False only for a slice that could not be restored exactly."""
        if isinstance(task, Open):
            return self.open(task)
        handlers: dict[type, Callable] = {
            Collect: self.collect,
            Gradient: self.gradient,
            Reduce: self.reduce,
            Evaluate: self.evaluate,
        }
        handlers[type(task)](task)
        return True

    def close(self) -> None:
        for slice_env in self.slices.values():
            slice_env.close()
        self.slices = {}

    # --- environments -----------------------------------------------------------------------------------------------------

    def columns(self, slice_index: int) -> slice:
        return slice(slice_index * self.shape.slice_envs, (slice_index + 1) * self.shape.slice_envs)

    def open(self, task: Open) -> bool:
        env = make_slice(self.settings, task.slice_index)
        self.slices[task.slice_index] = env
        if task.fresh:
            self.publish(task.slice_index, task.iteration, env.reset(), np.ones(self.shape.slice_envs, bool))
            return True
        memory, slot, columns = self.memory, task.iteration % 2, self.columns(task.slice_index)
        assert memory.state_stamp[slot, task.slice_index] == task.iteration, (
            "the slot holds another iteration"
        )
        lengths = memory.state_length[slot, columns]
        states = [
            bytes(memory.state_bytes[slot, column, :length])
            for column, length in zip(range(columns.start, columns.stop), lengths, strict=True)
        ]
        observation, exact = env.set_state(states)
        memory.carry_observation[slot, columns] = observation
        memory.carry_start[slot, columns] |= ~exact
        return bool(exact.all())

    def publish(self, slice_index: int, iteration: int, observation: np.ndarray, start: np.ndarray) -> None:
        """Where the next iteration starts, into the slot that nobody reads now; the stamp comes last."""
        memory, slot, columns = self.memory, iteration % 2, self.columns(slice_index)
        memory.state_stamp[slot, slice_index] = -1
        memory.carry_observation[slot, columns] = observation
        memory.carry_start[slot, columns] = start
        for column, state in zip(
            range(columns.start, columns.stop), self.slices[slice_index].get_state(), strict=True
        ):
            assert len(state) <= self.spec.state_bytes, (
                f"environment {column} has a state of {len(state)} bytes, {self.spec.state_bytes} are reserved"
            )
            memory.state_bytes[slot, column, : len(state)] = np.frombuffer(state, np.uint8)
            memory.state_length[slot, column] = len(state)
        memory.state_stamp[slot, slice_index] = iteration

    # --- collect ----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def collect(self, task: Collect) -> None:
        memory, shape, columns = self.memory, self.shape, self.columns(task.slice_index)
        env, slot = self.slices[task.slice_index], task.iteration % 2
        assert memory.state_stamp[slot, task.slice_index] == task.iteration, (
            "the slot holds another iteration"
        )
        draws = generator(self.settings.training.seed, "action", task.slice_index, task.iteration)
        noise = heads.draw_noise(self.spec.action, draws, shape.num_steps, shape.slice_envs)
        self.policy.pack()
        memory.observation[0, columns] = memory.carry_observation[slot, columns]
        memory.episode_start[0, columns] = memory.carry_start[slot, columns]
        for t in range(shape.num_steps):
            action, log_prob, value = self.act(torch.from_numpy(memory.observation[t, columns]), noise[t])
            memory.action[t, columns] = action
            memory.log_prob[t, columns] = log_prob
            memory.value[t, columns] = value
            self.step(env, t, columns, memory.action[t, columns])
        last = torch.from_numpy(memory.observation[shape.num_steps, columns])
        memory.value[shape.num_steps, columns] = self.network(self.prepare(last)).value.numpy()
        self.check_outputs(columns)
        self.publish(
            task.slice_index,
            task.iteration + 1,
            memory.observation[shape.num_steps, columns],
            memory.episode_start[shape.num_steps, columns],
        )

    def act(self, rows: torch.Tensor, noise: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions, their log-probabilities and values."""
        observation = self.prepare(rows)
        if isinstance(self.written, NativeCnn):
            return self.written.act(observation, noise)
        output = self.network(observation)
        action, log_prob = heads.act(self.spec.action, output.action, output.log_std, noise)
        return action, log_prob, output.value.numpy()

    def step(self, env: SliceEnv, t: int, columns: slice, action: np.ndarray) -> None:
        memory = self.memory
        try:
            result = env.step(action)
        except NumbersError as error:
            raise NumbersError(f"{error}, at step {t} of the iteration") from None
        if not np.isfinite(result.reward).all():
            culprit = columns.start + int(np.argmin(np.isfinite(result.reward)))
            raise NumbersError(
                f"environment {culprit} ({self.settings.env.id}) gave the reward {result.reward[culprit - columns.start]} at step {t} of the iteration"
            )
        memory.observation[t + 1, columns] = result.observation
        memory.reward[t, columns] = result.reward
        memory.episode_start[t + 1, columns] = result.episode_start
        memory.level_seed[t, columns] = -1 if result.level_seed is None else result.level_seed
        memory.truncated[t, columns] = 0
        memory.final_value[t, columns] = 0
        if result.final_observation is not None:
            assert result.truncated is not None
            value = self.network(self.prepare(torch.from_numpy(result.final_observation))).value.numpy()
            memory.truncated[t, columns] = result.truncated
            memory.final_value[t, columns] = np.where(result.truncated, value, 0)

    def check_outputs(self, columns: slice) -> None:
        """Finite weights and observations can still overflow in between."""
        for name in ("value", "log_prob"):
            found = np.argwhere(~np.isfinite(getattr(self.memory, name)[:, columns]))
            if len(found):
                t, env = found[0].tolist()
                raise NumbersError(
                    f"the policy's {name} for environment {columns.start + env} ({self.settings.env.id}) is not finite at step {t} of the iteration"
                )

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return self.policy.prepare(
            rows, self.observation_mean, self.observation_scale, self.settings.training.observation_clip
        )

    # --- update -----------------------------------------------------------------------------------------------------------

    def lane_rows(self, task: Gradient) -> torch.Tensor:
        """The rows of the slab that a lane reads."""
        shape = self.shape
        slice_index, part = divmod(task.lane, len(shape.lane_sizes))
        key = (task.iteration, task.epoch, slice_index)
        if key not in self.order_cache:
            self.order_cache = {k: v for k, v in self.order_cache.items() if k[:2] == key[:2]}
            order = ppo.sample_order(seed=self.settings.training.seed, slice_index=slice_index, iteration=task.iteration, epoch=task.epoch,
                                     num_samples=shape.num_steps * shape.slice_envs)  # fmt: skip
            self.order_cache[key] = ppo.slab_rows(
                order, slice_index=slice_index, slice_envs=shape.slice_envs, num_envs=shape.num_envs
            )
        first = task.minibatch * shape.share + sum(shape.lane_sizes[:part])
        return torch.from_numpy(self.order_cache[key][first : first + shape.lane_sizes[part]])

    def gradient(self, task: Gradient) -> None:
        index = self.lane_rows(task)
        batch = {name: rows.index_select(0, index) for name, rows in self.rows.items()}
        batch["advantage"].sub_(task.advantage_mean).mul_(task.advantage_scale)
        observation = self.prepare(batch.pop("observation"))
        training = self.settings.training
        weights = Weights(
            self.shape.batch_size, task.clip_range, task.clip_range if training.clip_value_loss else None,
            training.entropy_coef, training.value_coef,
        )  # fmt: skip
        into = self.gradient_views(task.lane)
        if self.written is None:
            statistics = self.autograd(observation, batch, weights, into)
        else:
            self.policy.pack((task.iteration, task.epoch, task.minibatch))
            arrays = Batch(**{name: rows.numpy() for name, rows in batch.items()})
            statistics = self.written.differentiate(observation, arrays, weights, into)
        self.memory.lane_statistics[task.lane] = statistics

    def autograd(
        self, observation: Any, batch: dict[str, torch.Tensor], weights: Weights, into: list[torch.Tensor]
    ) -> list[float]:
        sums = self.loss(self.policy(observation), batch, weights)
        gradients = torch.autograd.grad(sums.total, self.parameters)
        for view, gradient in zip(into, gradients, strict=True):
            view.copy_(gradient)
        return [float(value.detach()) for value in sums]

    def loss(self, output: Output, batch: dict[str, torch.Tensor], weights: Weights) -> ppo.LossSums:
        evaluated = heads.evaluate(self.spec.action, output.action, output.log_std, batch["action"])
        return ppo.loss_sums(
            log_prob=evaluated.log_prob, entropy=evaluated.entropy, value=output.value,
            old_log_prob=batch["log_prob"], old_value=batch["value"], advantage=batch["advantage"],
            target_return=batch["target_return"], **weights._asdict(),
        )  # fmt: skip

    def gradient_views(self, lane: int) -> Any:
        """Made once: lanes live at fixed places."""
        if lane not in self.lane_views:
            vector = self.memory.tensor("lane_gradient")[lane]
            vector.zero_()  # what lies between the parameters stays 0
            self.lane_views[lane] = (
                list(views(self.policy, vector).values())
                if self.written is None
                else self.written.gradient_views(vector)
            )
        return self.lane_views[lane]

    def reduce(self, task: Reduce) -> None:
        """Sums the lanes' gradients of some blocks of parameters, and their squares in float64."""
        lanes = self.memory.tensor("lane_gradient")[task.first_lane : task.end_lane]
        gradient = self.memory.tensor("gradient")
        for block in range(task.first_block, task.end_block):
            span = slice(block * BLOCK, (block + 1) * BLOCK)
            self.memory.gradient_squares[block] = optimizers.sum_lanes(
                lanes[:, span], gradient[span], self.settings.training.kernels
            )

    # --- evaluation -------------------------------------------------------------------------------------------------------

    def evaluate(self, task: Evaluate) -> None:
        """Environments of its own, keyed randomness of its own: training cannot tell whether this ran."""
        results = self.memory.evaluation[task.part, task.slice_index * playing.SLOTS :][: playing.SLOTS]
        results.fill(np.nan)
        episodes = playing.play_slice(
            self.settings, playing.PARTS[task.part], task.slice_index, task.iteration,
            policy=self.policy, prepare=self.prepare, num_episodes=len(results),
        )  # fmt: skip
        for slot, episode in episodes:
            results[slot] = episode
