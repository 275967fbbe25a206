"""What a worker does with a task: open its slices, collect, compute gradients of lanes, sum blocks of
parameters, evaluate.

T steps, E envs, B samples of a lane.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from parallel_ppo.algorithms import ALGORITHMS, minibatches
from parallel_ppo.algorithms.algorithm import Sampled, Statistics, differentiate
from parallel_ppo.algorithms.augmentation import augmented
from parallel_ppo.algorithms.drac import regularized
from parallel_ppo.envs.contract import EnvSpec, SliceEnv
from parallel_ppo.envs.families import make_slice
from parallel_ppo.exits import EnvironmentFault, NumbersError
from parallel_ppo.features.curiosity.state import CuriosityRollout
from parallel_ppo.features.curiosity.worker import CuriosityInWorker
from parallel_ppo.features.levels import LevelsInWorker, LevelState
from parallel_ppo.kernels.native_lane import LaneSlab
from parallel_ppo.keyed import generator
from parallel_ppo.memory.arrays import Slab
from parallel_ppo.policies import heads
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.network import Acted, Output
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing
from parallel_ppo.workers.gradient_parts import sum_blocks
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.native_lanes import make_native_lane
from parallel_ppo.workers.observer import Reach, unobserved
from parallel_ppo.workers.tasks import Collect, Evaluate, Gradient, Open, Reduce, Revalue, Task, WarmUp

PARAMETERS = "parameters", "observation_mean", "observation_scale"
CHECKED = {"reward": "reward of", "value": "policy's value for", "log_prob": "policy's log_prob for"}
REVALUED_ROWS = 64  # samples that are revalued as one batch


class Worker:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: Memory, reach: Reach = unobserved) -> None:
        self.settings, self.spec, self.memory, self.reach = settings, spec, memory, reach
        self.shape = settings.shape
        self.actor = Actor(settings, spec, *(memory.tensor(name) for name in PARAMETERS))
        self.older = self.actor  # acts with a version of the parameters that is not the newest
        if self.shape.num_versions:
            self.older = Actor(settings, spec, *(memory.tensor(name).clone() for name in PARAMETERS))
        self.algorithm = ALGORITHMS[settings.training.algorithm]
        self.levels = LevelsInWorker(settings, memory) if LevelState.is_needed(settings) else None
        self.slices: dict[int, SliceEnv] = {}
        # Of slices that could not be restored: observation and episode_start where they begin.
        self.restarted: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.lane_views: dict[int, Any] = {}
        self.order_cache: dict[tuple[int, int, int], np.ndarray] = {}
        self.rows = [slab.sampled_rows() for slab in memory.slabs]
        self.native_lane = make_native_lane(settings, spec, self.actor)
        self.lane_slabs = [LaneSlab(rows) for rows in self.rows] if self.native_lane else []
        self.handlers: dict[type, Callable[[Any], bool | None]] = {
            Open: self.open,
            Collect: self.collect,
            Gradient: self.gradient,
            Reduce: self.reduce,
            Revalue: self.revalue,
            Evaluate: self.evaluate,
            WarmUp: self.warm_up,
        }

    @functools.cached_property
    @torch.inference_mode(False)  # so that it can be differentiated, wherever it is made
    def curiosity(self) -> CuriosityInWorker | None:
        """Made when it is needed: evaluations do not need it."""
        if not self.settings.curiosity.is_curious:
            return None
        predictors = self.memory.tensor("parameters")[self.memory.policy_end :]
        return CuriosityInWorker(self.settings, self.spec, self.memory, predictors)

    def run(self, task: Task) -> bool:
        """Performs a task. False only for a slice that could not be restored exactly."""
        return self.handlers[type(task)](task) is not False

    def close(self) -> None:
        for slice_env in self.slices.values():
            slice_env.close()
        self.slices = {}

    # --- environments ---------------------------------------------------------------------------------------

    def columns(self, slice_index: int) -> slice:
        return slice(slice_index * self.shape.slice_envs, (slice_index + 1) * self.shape.slice_envs)

    def slot_of(self, task: Open | Collect) -> int:
        """Where the task's iteration starts."""
        slot = self.memory.slot(task.iteration)
        stamp = self.memory.state_stamp[slot, task.slice_index]
        assert stamp == task.iteration, "the slot holds another iteration"
        return slot

    def open(self, task: Open) -> bool:
        self.reach("spawn", -1, 1)
        env = make_slice(self.settings, task.slice_index)
        self.slices[task.slice_index] = env
        if task.fresh:
            start = np.ones(self.shape.slice_envs, bool)
            self.publish(task.slice_index, task.iteration, carry_observation=env.reset(), carry_start=start)
            return True
        memory, slot, columns = self.memory, self.slot_of(task), self.columns(task.slice_index)
        lengths = memory.state_length[slot, columns]
        states = [
            bytes(memory.state_bytes[slot, column, :length])
            for column, length in zip(range(columns.start, columns.stop), lengths, strict=True)
        ]
        observation, exact = env.set_state(states)
        self.restarted.pop(task.slice_index, None)
        if not exact.all():  # the slot stays whole: it may still be saved, or opened again
            self.restarted[task.slice_index] = observation, memory.carry_start[slot, columns] | ~exact
        return bool(exact.all())

    def publish(self, slice_index: int, iteration: int, **carried: np.ndarray) -> None:
        """Where the next iteration starts, into the slot that nobody reads now; the stamp comes last."""
        memory, slot, columns = self.memory, self.memory.slot(iteration), self.columns(slice_index)
        memory.state_stamp[slot, slice_index] = -1
        for name, rows in carried.items():
            getattr(memory, name)[slot, columns] = rows
        states = self.slices[slice_index].get_state()
        for column, state in zip(range(columns.start, columns.stop), states, strict=True):
            if len(state) > self.spec.state_bytes:
                raise EnvironmentFault(
                    f"environment {column} ({self.settings.env.id})",
                    f"has grown to a state of {len(state):,} bytes; {self.spec.state_bytes:,} are reserved,"
                    " after what get_state returned first. Let it return less, or remove it: actions are"
                    " replayed then",
                )
            memory.state_bytes[slot, column, : len(state)] = np.frombuffer(state, np.uint8)
            memory.state_length[slot, column] = len(state)
        memory.state_stamp[slot, slice_index] = iteration

    # --- collect --------------------------------------------------------------------------------------------

    def acting(self, slice_index: int, iteration: int) -> Actor:
        """With the parameters that the slice collects this iteration with."""
        if self.shape.num_versions:
            for own, name in zip(self.older.tensors, PARAMETERS, strict=True):
                own.copy_(torch.from_numpy(self.memory.acting(name, slice_index, iteration)))
        return self.older

    @torch.inference_mode()  # entered once: on small networks it costs as much as a layer
    def collect(self, task: Collect) -> None:
        for _ in self.collecting(task):
            pass

    def collecting(self, task: Collect) -> Iterator[None]:
        """Pauses after every step, so that something more urgent can be done in between."""
        slab, shape, columns = self.memory.slab(task.iteration), self.shape, self.columns(task.slice_index)
        env, slot = self.slices[task.slice_index], self.slot_of(task)
        draws = generator(self.settings.training.seed, "action", task.slice_index, task.iteration)
        actor = self.acting(task.slice_index, task.iteration)
        noise = actor.draw_noise(draws, shape.num_steps, shape.slice_envs)
        actor.refresh()
        saved = self.memory.carry_observation[slot, columns], self.memory.carry_start[slot, columns]
        observation, start = self.restarted.pop(task.slice_index, saved)
        slab.observation[0, columns], slab.episode_start[0, columns] = observation, start
        slab.level_seed[:, columns] = slab.level_complete[:, columns] = -1  # unless a step says otherwise
        slab.truncated[:, columns] = slab.final_value[:, columns] = 0
        for t in range(shape.num_steps):
            if self.levels is not None:
                starts = slab.episode_start[t, columns]
                self.levels.before_step(env, task.slice_index, task.iteration, t, starts)
            mask = env.action_mask
            if mask is not None:
                slab.action_mask[t, columns] = mask
            acted = actor.act(slab.observation[t, columns], noise[t], mask)
            slab.action[t, columns] = acted.action
            slab.log_prob[t, columns] = acted.log_prob
            keep_values(slab, t, columns, acted)
            self.reach("collect", task.iteration, t)
            self.step(env, actor, slab, t, columns)
            self.memory.steps_done[task.slice_index] = t + 1
            yield
        if self.levels is not None:
            self.levels.after_steps(env, slab, columns)
        last = slab.observation[shape.num_steps, columns]
        keep_values(slab, shape.num_steps, columns, actor.infer(last))
        self.check_outputs(slab, columns)
        next_start = slab.episode_start[shape.num_steps, columns]
        carried = {"carry_observation": last, "carry_start": next_start}
        if self.curiosity is not None:
            carried |= self.curiosity.reward(task.slice_index, task.iteration, slab, columns)
        self.publish(task.slice_index, task.iteration + 1, **carried)

    def step(self, env: SliceEnv, actor: Actor, slab: Slab, t: int, columns: slice) -> None:
        try:
            result = env.step(slab.action[t, columns])
        except NumbersError as error:
            raise NumbersError(f"{error}, at step {t} of the iteration") from None
        slab.observation[t + 1, columns] = result.observation
        slab.reward[t, columns] = result.reward
        slab.episode_start[t + 1, columns] = result.episode_start
        if result.level_seed is not None:
            slab.level_seed[t, columns] = result.level_seed
        if result.level_complete is not None:
            slab.level_complete[t, columns] = result.level_complete
        if result.final_observation is not None:
            assert result.truncated is not None
            value = actor.value(result.final_observation)
            slab.truncated[t, columns] = result.truncated
            slab.final_value[t, columns] = np.where(result.truncated, value, 0)

    def check_outputs(self, slab: Slab, columns: slice) -> None:
        """Finite weights and observations can still overflow in between."""
        for name, text in CHECKED.items():
            found = np.argwhere(~np.isfinite(getattr(slab, name)[:, columns]))
            if len(found):
                t, env = found[0].tolist()
                raise NumbersError(
                    f"the {text} environment {columns.start + env} ({self.settings.env.id}) "
                    f"is not finite at step {t} of the iteration"
                )

    @torch.inference_mode()
    def revalue(self, task: Revalue) -> None:
        """What the learner's policy says of a slice's samples that an older one collected."""
        slab, columns, steps = (
            self.memory.slab(task.iteration),
            self.columns(task.slice_index),
            self.shape.num_steps,
        )
        actor, spec = self.actor, self.spec.action
        actor.refresh()
        observation, action = slab.observation[:, columns], slab.action[:, columns]
        step_rows = max(1, REVALUED_ROWS // self.shape.slice_envs)
        for first in range(0, steps + 1, step_rows):
            some = observation[first : first + step_rows]
            output = actor.infer(some.reshape(-1, *some.shape[2:]))
            end = first + len(some)
            slab.learner_value[first:end, columns] = output.value.numpy().reshape(some.shape[:2])
            taken = torch.from_numpy(action[first:end].reshape(-1, action.shape[2]))
            output = output._replace(action=output.action[: len(taken)])
            if self.spec.masks_actions:
                mask = slab.action_mask[first:end, columns].reshape(output.action.shape)
                output = heads.masked(output, torch.from_numpy(mask))
            log_prob = heads.evaluate(spec, output.action, output.log_std, taken).log_prob.numpy()
            last = min(end, steps)
            slab.learner_log_prob[first:last, columns] = log_prob.reshape(last - first, self.shape.slice_envs)

    # --- update ---------------------------------------------------------------------------------------------

    def lane_rows(self, task: Gradient) -> np.ndarray:
        """The rows of the slab that a lane reads."""
        shape = self.shape
        slice_index, number = divmod(task.lane, len(shape.lane_sizes))
        key = (task.iteration, task.epoch, slice_index)
        if key not in self.order_cache:
            self.order_cache = {k: v for k, v in self.order_cache.items() if k[:2] == key[:2]}
            order = minibatches.sample_order(
                seed=self.settings.training.seed, slice_index=slice_index, iteration=task.iteration,
                epoch=task.epoch, num_samples=shape.num_steps * shape.slice_envs,
            )  # fmt: skip
            self.order_cache[key] = minibatches.slab_rows(
                order, slice_index=slice_index, slice_envs=shape.slice_envs, num_envs=shape.num_envs
            )
        first = task.minibatch * shape.slice_samples + sum(shape.lane_sizes[:number])
        return self.order_cache[key][first : first + shape.lane_sizes[number]]

    def gradient(self, task: Gradient) -> None:
        actor, step = self.learning(task)
        into, rows = self.gradient_views(task.lane), self.lane_rows(task)
        gradient, statistics = self.memory.lane_gradient[task.lane], self.memory.lane_statistics[task.lane]
        self.reach("gradient", task.iteration, task.lane, gradient)
        actor.network.begin_step(step)
        if self.native_lane is None:
            statistics[...] = self.differentiate(actor, task, torch.from_numpy(rows), into)
        else:
            slab = self.lane_slabs[task.iteration % len(self.rows)]
            self.native_lane.gradient(slab, rows, task.scalars, gradient, statistics)

    def differentiate(self, actor: Actor, task: Gradient, rows: torch.Tensor, into: Any) -> Statistics:
        network, columns = actor.network, self.rows[task.iteration % len(self.rows)]
        batch = {name: column.index_select(0, rows) for name, column in columns.items()}
        augments = self.settings.training.augmentation != "none"
        observation, mask = batch.pop("observation"), batch.pop("action_mask", None)
        if augments:
            observation = torch.cat([observation, self.augmented(observation, task)])
            mask = None if mask is None else mask.repeat(2, 1)
        observation = actor.prepare(observation)
        size = self.shape.learned_together
        sampled = Sampled(batch, task.scalars, self.spec.action, self.settings.training, size)
        output = heads.masked(network.forward(observation), mask)
        find = regularized if augments else differentiate
        gradient, statistics = find(self.algorithm, network, output, sampled)
        network.backward(gradient, into)
        if self.curiosity is not None:
            step = task.iteration, task.epoch, task.minibatch
            statistics = self.curiosity.learn(task.lane, step, rows, statistics)
        return statistics

    def augmented(self, observation: torch.Tensor, task: Gradient) -> torch.Tensor:
        """Drawn anew for each use of a sample; a lane's samples do not depend on who computes it."""
        training, step = self.settings.training, (task.iteration, task.epoch, task.minibatch, task.lane)
        draws = generator(training.seed, "augmentation", *step)
        return augmented(training.augmentation, observation, self.spec, draws)

    def learning(self, task: Gradient) -> tuple[Actor, tuple[int, ...]]:
        """The policy that a lane's loss is differentiated at, and a name for its parameters."""
        step = task.iteration, task.epoch, task.minibatch
        if not self.shape.num_actors:
            return self.actor, step
        slice_index = task.lane // len(self.shape.lane_sizes)
        return self.acting(slice_index, task.iteration), (*step, slice_index)

    def gradient_views(self, lane: int) -> Any:
        """Made once: lanes live at fixed places."""
        if lane not in self.lane_views:
            vector = self.memory.tensor("lane_gradient")[lane]
            vector.zero_()  # what lies between the parameters stays 0
            self.lane_views[lane] = self.actor.network.gradient_views(vector)
        return self.lane_views[lane]

    def reduce(self, task: Reduce) -> None:
        blocks, lanes = range(task.first_block, task.end_block), range(task.first_lane, task.end_lane)
        sum_blocks(self.memory, self.settings, blocks, lanes)

    # --- other tasks ----------------------------------------------------------------------------------------

    def warm_up(self, task: WarmUp) -> None:
        assert self.curiosity is not None
        self.curiosity.warm_up(task.slice_index)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, task: Evaluate) -> None:
        """Environments of its own, keyed randomness of its own: training cannot tell whether this ran."""
        first = task.slice_index * playing.SLOTS
        results = self.memory.evaluation[task.level_set, first : first + playing.SLOTS]
        results.fill(np.nan)
        episodes = playing.play_slice(
            self.settings, playing.LEVEL_SETS[task.level_set], task.slice_index, task.iteration,
            actor=self.actor, num_episodes=len(results),
        )  # fmt: skip
        for slot, episode in episodes:
            results[slot] = episode


def keep_values(slab: Slab, t: int, columns: slice, said: Acted | Output) -> None:
    slab.value[t, columns] = said.value
    if said.intrinsic_value is not None:
        slab.of(CuriosityRollout).intrinsic_value[t, columns] = said.intrinsic_value
