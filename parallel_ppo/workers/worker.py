"""A worker's tasks: opening slices, collecting, revaluing, gradients of microbatches, evaluation.

T steps, E envs, B samples of a microbatch.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parallel_ppo.algorithms import ALGORITHMS, ppo
from parallel_ppo.algorithms.algorithm import Sampled, Statistics, differentiate
from parallel_ppo.algorithms.augmentation import augmented
from parallel_ppo.algorithms.drac import regularized
from parallel_ppo.envs.contract import EnvSpec, SliceEnv
from parallel_ppo.envs.families import make_slice
from parallel_ppo.exits import EnvironmentFault, NumbersError
from parallel_ppo.features.levels import LevelsInWorker, LevelState
from parallel_ppo.features.recurrence import RecurrenceInWorker, Walk
from parallel_ppo.kernels.choice import computes_whole_microbatches
from parallel_ppo.kernels.native_microbatch import MicrobatchLoss, NativeMicrobatch, RolloutColumns
from parallel_ppo.keyed import generator
from parallel_ppo.memory.arrays import RolloutBuffer
from parallel_ppo.policies import heads
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.head_derivatives import differentiate as differentiate_head
from parallel_ppo.policies.native_mlp import NativeMlp
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.observer import Probe, unobserved
from parallel_ppo.workers.tasks import COLLECT, EVALUATE, GRADIENT, OPEN, REVALUE, WARM_UP, Microbatch, Task

if TYPE_CHECKING:
    from parallel_ppo.features.curiosity.worker import CuriosityInWorker

PARAMETERS = "parameters", "observation_mean", "observation_scale"
CHECKED = {"reward": "reward of", "value": "policy's value for", "log_prob": "policy's log_prob for"}
VALUES = "value", "intrinsic_value"  # the arrays that take the columns of a network's values
REVALUED_ROWS = 64  # samples that are revalued as one batch


class Worker:
    def __init__(self, settings: Settings, spec: EnvSpec, memory: Memory, probe: Probe = unobserved) -> None:
        self.settings, self.spec, self.memory, self.probe = settings, spec, memory, probe
        self.sizes = settings.sizes
        self.actor = Actor(settings, spec, *(memory.tensor(name) for name in PARAMETERS))
        self.older = self.actor  # acts with a version of the parameters that is not the newest
        if self.sizes.num_versions:
            self.older = Actor(settings, spec, *(memory.tensor(name).clone() for name in PARAMETERS))
        self.algorithm = ALGORITHMS[settings.training.algorithm]
        self.levels = LevelsInWorker(settings, memory) if LevelState.is_needed(settings) else None
        self.recurrence = RecurrenceInWorker(settings, memory)
        self.slices: dict[int, SliceEnv] = {}
        # Of slices that could not be restored: observation and episode_start where they begin.
        self.restarted: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.microbatch_views: dict[int, Any] = {}
        self.rows = [rollout.sampled_rows() for rollout in memory.rollouts]
        self.native_microbatch = make_native_microbatch(settings, spec, self.actor)
        self.rollout_columns = [RolloutColumns(rows) for rows in self.rows] if self.native_microbatch else []
        self.handlers: dict[str, Callable[[Task], bool | None]] = {
            OPEN: self.open,
            COLLECT: self.collect,
            GRADIENT: self.gradient,
            REVALUE: self.revalue,
            EVALUATE: self.evaluate,
            WARM_UP: self.warm_up,
        }

    @functools.cached_property
    @torch.inference_mode(False)  # so that it can be differentiated, wherever it is made
    def curiosity(self) -> "CuriosityInWorker | None":
        """Made at first use: evaluations do not need it."""
        if not self.sizes.predictor_samples:
            return None
        from parallel_ppo.features.curiosity.worker import CuriosityInWorker  # only runs that need it load it

        predictors = self.memory.tensor("parameters")[self.memory.policy_end :]
        return CuriosityInWorker(self.settings, self.spec, self.memory, predictors)

    def run(self, task: Task) -> bool:
        """Performs a task. False only for a slice that could not be restored exactly."""
        return self.handlers[task.kind](task) is not False

    def close(self) -> None:
        for slice_env in self.slices.values():
            slice_env.close()
        self.slices = {}

    # --- environments ---------------------------------------------------------------------------------------

    def columns(self, slice_index: int) -> slice:
        return slice(slice_index * self.sizes.slice_envs, (slice_index + 1) * self.sizes.slice_envs)

    def slot_of(self, task: Task) -> int:
        """The slot that the task's iteration starts from."""
        slot = self.memory.slot(task.iteration)
        stamp = self.memory.state_stamp[slot, task.number]
        assert stamp == task.iteration, "the slot holds another iteration"
        return slot

    def open(self, task: Task) -> bool:
        self.probe("spawn", -1, 1)
        env = make_slice(self.settings, task.number)
        self.slices[task.number] = env
        if task.detail:
            start = np.ones(self.sizes.slice_envs, bool)
            self.publish(task.number, task.iteration, carry_observation=env.reset(), carry_start=start)
            return True
        memory, slot, columns = self.memory, self.slot_of(task), self.columns(task.number)
        lengths = memory.state_length[slot, columns]
        states = [
            bytes(memory.state_bytes[slot, column, :length])
            for column, length in zip(range(columns.start, columns.stop), lengths, strict=True)
        ]
        observation, exact = env.set_state(states)
        self.restarted.pop(task.number, None)
        if not exact.all():  # the slot stays whole: it may still be saved, or opened again
            self.restarted[task.number] = observation, memory.carry_start[slot, columns] | ~exact
        return bool(exact.all())

    def publish(self, slice_index: int, iteration: int, **carried: np.ndarray) -> None:
        """Writes the start of the next iteration into a slot that no process reads now; the stamp comes last."""
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
        if self.sizes.num_versions:
            for own, name in zip(self.older.tensors, PARAMETERS, strict=True):
                own.copy_(torch.from_numpy(self.memory.acting(name, slice_index, iteration)))
        return self.older

    @torch.inference_mode()  # entered once: on small networks it costs as much as a layer
    def collect(self, task: Task) -> None:
        for _ in self.collecting(task):
            pass

    def collecting(self, task: Task) -> Iterator[None]:
        """Pauses after every step, so that something more urgent can be done in between."""
        rollout, sizes, columns = self.memory.rollout(task.iteration), self.sizes, self.columns(task.number)
        env, slot = self.slices[task.number], self.slot_of(task)
        draws = generator(self.settings.training.seed, "action", task.number, task.iteration)
        actor = self.acting(task.number, task.iteration)
        noise = actor.draw_noise(draws, sizes.num_steps, sizes.slice_envs)
        actor.refresh()
        saved = self.memory.carry_observation[slot, columns], self.memory.carry_start[slot, columns]
        observation, start = self.restarted.pop(task.number, saved)
        rollout.observation[0, columns], rollout.episode_start[0, columns] = observation, start
        rollout.level_seed[:, columns] = rollout.level_complete[
            :, columns
        ] = -1  # unless a step says otherwise
        rollout.truncated[:, columns] = rollout.final_value[:, columns] = 0
        walk = self.recurrence.walk(task.iteration, columns)
        for t in range(sizes.num_steps):
            if self.levels is not None:
                starts = rollout.episode_start[t, columns]
                self.levels.before_step(env, task.number, task.iteration, t, starts)
            mask = env.action_mask
            if mask is not None:
                rollout.action_mask[t, columns] = mask
            acted = actor.act(rollout.observation[t, columns], noise[t], mask, walk.collected(t))
            rollout.action[t, columns] = acted.action
            rollout.log_prob[t, columns] = acted.log_prob
            keep_values(rollout, t, columns, acted.values)
            self.probe("collect", task.iteration, t)
            self.step(env, actor, walk, t)
            self.memory.steps_done[task.number] = t + 1
            yield
        if self.levels is not None:
            self.levels.after_steps(env, rollout, columns)
        last = rollout.observation[sizes.num_steps, columns]
        values = actor.values(last, walk.past(sizes.num_steps, sizes.num_steps + 1))
        keep_values(rollout, sizes.num_steps, columns, values)
        self.check_outputs(rollout, columns)
        next_start = rollout.episode_start[sizes.num_steps, columns]
        carried = {"carry_observation": last, "carry_start": next_start} | self.recurrence.carried(walk)
        if self.curiosity is not None:
            carried |= self.curiosity.reward(task.number, task.iteration, rollout, columns)
        self.publish(task.number, task.iteration + 1, **carried)

    def step(self, env: SliceEnv, actor: Actor, walk: Walk, t: int) -> None:
        rollout, columns = walk.rollout, walk.columns
        try:
            result = env.step(rollout.action[t, columns])
        except NumbersError as error:
            raise NumbersError(f"{error}, at step {t} of the iteration") from None
        rollout.observation[t + 1, columns] = result.observation
        rollout.reward[t, columns] = result.reward
        rollout.episode_start[t + 1, columns] = result.episode_start
        if result.level_seed is not None:
            rollout.level_seed[t, columns] = result.level_seed
        if result.level_complete is not None:
            rollout.level_complete[t, columns] = result.level_complete
        if result.info is not None:
            rollout.info[t, columns] = result.info
        if result.final_observation is not None:
            assert result.truncated is not None
            value = actor.value(result.final_observation, walk.inside())
            rollout.truncated[t, columns] = result.truncated
            rollout.final_value[t, columns] = np.where(result.truncated, value, 0)

    def check_outputs(self, rollout: RolloutBuffer, columns: slice) -> None:
        """Finite weights and observations can still overflow in between."""
        for name, text in CHECKED.items():
            found = np.argwhere(~np.isfinite(getattr(rollout, name)[:, columns]))
            if len(found):
                t, env = found[0].tolist()
                raise NumbersError(
                    f"the {text} environment {columns.start + env} ({self.settings.env.id}) "
                    f"is not finite at step {t} of the iteration"
                )

    @torch.inference_mode()
    def revalue(self, task: Task) -> None:
        """The learner's values and log-probabilities of a slice's samples, which an older policy collected."""
        rollout, columns, steps = (
            self.memory.rollout(task.iteration),
            self.columns(task.number),
            self.sizes.num_steps,
        )
        actor, spec = self.actor, self.spec.action
        actor.refresh()
        observation, action = rollout.observation[:, columns], rollout.action[:, columns]
        step_rows = max(1, REVALUED_ROWS // self.sizes.slice_envs)
        walk = self.recurrence.walk(task.iteration, columns)
        for first in range(0, steps + 1, step_rows):
            some = observation[first : first + step_rows]
            end = first + len(some)
            output = actor.infer(some.reshape(-1, *some.shape[2:]), walk.past(first, end))
            rollout.learner_value[first:end, columns] = output.value.numpy().reshape(some.shape[:2])
            taken = action[first:end].reshape(-1, action.shape[2])
            output = output._replace(action=output.action[: len(taken)])
            if self.spec.masks_actions:
                mask = rollout.action_mask[first:end, columns].reshape(output.action.shape)
                output = heads.masked(output, torch.from_numpy(mask))
            log_std = None if output.log_std is None else output.log_std.numpy()
            log_prob = differentiate_head(spec, output.action.numpy(), log_std, taken).log_prob
            last = min(end, steps)
            rollout.learner_log_prob[first:last, columns] = log_prob.reshape(
                last - first, self.sizes.slice_envs
            )

    # --- update ---------------------------------------------------------------------------------------------

    def microbatch_rows(self, microbatch: int, step: int) -> np.ndarray:
        """The rows of the rollout that a microbatch reads."""
        sizes, (epoch, minibatch) = self.sizes, self.sizes.epoch_and_minibatch(step)
        slice_index, number = divmod(microbatch, len(sizes.microbatch_sizes))
        first = minibatch * sizes.slice_samples + sum(sizes.microbatch_sizes[:number])
        return self.memory.step_rows[epoch, slice_index, first : first + sizes.microbatch_sizes[number]]

    def microbatch_scalars(self, microbatch: int, plan: Microbatch) -> tuple[float, ...]:
        actor = microbatch // len(self.sizes.microbatch_sizes)
        row = self.memory.step_scalars[actor if self.sizes.num_actors else plan.step]
        return tuple(row[: plan.num_scalars].tolist())

    def gradient(self, task: Task) -> None:
        microbatch, plan = task.number, task.detail
        actor, key = self.learning(task)
        into, rows, scalars = (
            self.gradient_views(microbatch),
            self.microbatch_rows(microbatch, plan.step),
            self.microbatch_scalars(microbatch, plan),
        )
        gradient, statistics = (
            self.memory.microbatch_gradient[microbatch],
            self.memory.microbatch_statistics[microbatch],
        )
        self.probe("gradient", task.iteration, microbatch, gradient)
        actor.network.begin_step(key)
        if self.native_microbatch is None:
            statistics[...] = self.differentiate(actor, task, rows, scalars, into)
        else:
            rollout = self.rollout_columns[task.iteration % len(self.rows)]
            self.native_microbatch.gradient(rollout, rows, scalars, gradient, statistics)

    def differentiate(
        self, actor: Actor, task: Task, rows: np.ndarray, scalars: tuple[float, ...], into: Any
    ) -> Statistics:
        network, columns = actor.network, self.rows[task.iteration % len(self.rows)]
        by_step = self.recurrence.by_step(rows)
        chosen = torch.from_numpy(by_step)
        batch = {name: column.index_select(0, chosen) for name, column in columns.items()}
        augments = self.settings.training.augmentation != "none"
        observation, mask = batch.pop("observation"), batch.pop("action_mask", None)
        if augments:
            observation = torch.cat([observation, self.augmented(observation, task)])
            mask = None if mask is None else mask.repeat(2, 1)
        observation = self.recurrence.sequences(task.iteration, by_step, actor.prepare(observation))
        size = self.sizes.learned_together
        sampled = Sampled(batch, scalars, self.spec.action, self.settings.training, size)
        output = heads.masked(network.forward(observation), mask)
        find = regularized if augments else differentiate
        gradient, statistics = find(self.algorithm, network, output, sampled)
        network.backward(gradient, into)
        if self.curiosity is not None:
            key = task.iteration, *self.sizes.epoch_and_minibatch(task.detail.step)
            statistics = self.curiosity.learn(task.number, key, torch.from_numpy(rows), statistics)
        return statistics

    def augmented(self, observation: torch.Tensor, task: Task) -> torch.Tensor:
        """Drawn anew for each use of a sample; keyed by the microbatch, so any worker draws the same."""
        training = self.settings.training
        key = (task.iteration, *self.sizes.epoch_and_minibatch(task.detail.step), task.number)
        draws = generator(training.seed, "augmentation", *key)
        return augmented(training.augmentation, observation, self.spec, draws)

    def learning(self, task: Task) -> tuple[Actor, tuple[int, ...]]:
        """The policy that a microbatch's loss is differentiated at, and a name for its parameters."""
        key = task.iteration, task.detail.step
        if not self.sizes.num_actors:
            return self.actor, key
        slice_index = task.number // len(self.sizes.microbatch_sizes)
        return self.acting(slice_index, task.iteration), (*key, slice_index)

    def gradient_views(self, microbatch: int) -> Any:
        """Made once: microbatches have fixed places."""
        if microbatch not in self.microbatch_views:
            vector = self.memory.tensor("microbatch_gradient")[microbatch]
            vector.zero_()  # the gaps between parameters stay 0
            self.microbatch_views[microbatch] = self.actor.network.gradient_views(vector)
        return self.microbatch_views[microbatch]

    # --- other tasks ----------------------------------------------------------------------------------------

    def warm_up(self, task: Task) -> None:
        assert self.curiosity is not None
        self.curiosity.warm_up(task.number)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, task: Task) -> None:
        """Uses separate environments and keyed randomness, so training does not depend on it."""
        level_set, first = task.detail, task.number * playing.SLOTS
        results = self.memory.evaluation[level_set, first : first + playing.SLOTS]
        results.fill(np.nan)
        episodes = playing.play_slice(
            self.settings,
            playing.LEVEL_SETS[level_set],
            task.number,
            task.iteration,
            actor=self.actor,
            num_episodes=len(results),
        )
        for slot, episode in episodes:
            results[slot] = episode


def keep_values(rollout: RolloutBuffer, t: int, columns: slice, values: np.ndarray) -> None:
    for name, column in zip(VALUES, values.T, strict=False):
        getattr(rollout, name)[t, columns] = column


def make_native_microbatch(settings: Settings, spec: EnvSpec, actor: Actor) -> NativeMicrobatch | None:
    """PPO with two MLPs, where calls cost more than arithmetic."""
    if not computes_whole_microbatches(settings, spec):
        return None
    training, network, (parameters, mean, scale) = settings.training, actor.network, actor.tensors
    assert ALGORITHMS[training.algorithm].loss_gradient is ppo.loss_gradient
    assert isinstance(network, NativeMlp)
    loss = MicrobatchLoss(
        training.value_coef,
        training.entropy_coef,
        settings.sizes.learned_together,
        training.clip_value_loss,
    )
    return NativeMicrobatch(
        network.address,
        *network.offsets(parameters),
        loss,
        (mean, scale, training.observation_clip) if training.normalize_observations else None,
        max(settings.sizes.microbatch_sizes),
    )
