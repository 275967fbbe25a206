"""A microbatch in one call of the C library against the same microbatch step by step, bit for bit."""

import numpy as np
import pytest

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.build import VARIANTS
from parallel_ppo.policies.parameters import initialize, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.training.optimizer_steps import epoch_order
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.tasks import GRADIENT, Microbatch, Task
from parallel_ppo.workers.worker import Worker
from tests.conftest import small_settings

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
needs_kernels = pytest.mark.skipif(not USABLE, reason="the kernels cannot be compiled here")
ACTIONS = {
    "two choices": ActionSpec("categorical", (2,)),
    "nine choices": ActionSpec("categorical", (9,)),
    "forty choices": ActionSpec("categorical", (40,)),
    "three components": ActionSpec("categorical", (3, 7, 21)),
    "six Gaussians": ActionSpec("gaussian", (6,), (-1.0,) * 6, (1.0,) * 6),
    "one Gaussian": ActionSpec("gaussian", (1,), (-1.0,), (1.0,)),
    "23 Gaussians": ActionSpec("gaussian", (23,), (-1.0,) * 23, (1.0,) * 23),
}
SETTINGS = {
    "plain": {},
    "clipped value, entropy": {"training__clip_value_loss": True, "training__entropy_coef": 0.013},
    "normalised": {"training__normalize_observations": True, "training__observation_clip": 1.5},
    "odd microbatches": {"training__lane_samples": 7, "training__entropy_coef": 0.01},
    "one large microbatch": {
        "training__lane_samples": 4096, "training__n_steps": 800, "training__batch_size": 6400,
    },
}  # fmt: skip


def write_plan(worker: Worker, scalars: tuple[float, ...]) -> None:
    """As the coordinator writes it, with the same scalars for every minibatch."""
    state, memory = TrainingState(worker.settings, worker.memory), worker.memory
    for epoch in range(worker.sizes.num_epochs):
        memory.step_rows[epoch] = epoch_order(state, epoch)
    memory.step_scalars[:, : len(scalars)] = scalars


def filled(action: ActionSpec, **flags: object) -> Worker:
    """With ratios inside, at and outside of the clip, and values on both sides of theirs."""
    settings = small_settings(training__kernels="native", **{"training__clip_value_loss": False, **flags})
    spec = EnvSpec((11,), "float32", action, 64)
    memory = Memory(settings, spec, num_flat(Policy(settings, spec)))
    worker, draws = Worker(settings, spec, memory), np.random.default_rng(5)
    initialize(worker.actor.policy, memory.tensor("parameters"), seed=1)
    memory.parameters[:] *= draws.uniform(0.5, 20, memory.parameters.shape)
    for name in ("observation", "advantage", "target_return", "value"):
        getattr(memory, name)[:] = draws.standard_normal(getattr(memory, name).shape)
    memory.observation_mean[:], memory.observation_scale[:] = draws.uniform(0.5, 2, (2, 11))
    if action.kind == "gaussian":
        memory.action[:] = draws.standard_normal(memory.action.shape)
    else:
        memory.action[:] = draws.integers(0, action.sizes, memory.action.shape)
    memory.log_prob[:] = draws.uniform(-4, 0, memory.log_prob.shape)
    if worker.actor.policy.log_std is not None:
        worker.actor.policy.log_std.data.uniform_(-1, 1)
    write_plan(worker, (0.1, 0.9, 0.2))
    return worker


def both(worker: Worker, minibatch: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gradients and statistics of all microbatches: in C, then step by step."""
    found, memory, kept = [], worker.memory, worker.native_microbatch
    assert kept is not None
    for worker.native_microbatch in (kept, None):
        for microbatch in range(worker.sizes.num_microbatches):
            worker.run(Task(GRADIENT, microbatch, 0, Microbatch(minibatch, 3)))
        found.append((memory.microbatch_gradient.copy(), memory.microbatch_statistics.copy()))
    worker.native_microbatch = kept
    return found


def assert_same_bits(ours: np.ndarray, plain: np.ndarray) -> None:
    np.testing.assert_array_equal(ours, plain)
    bits = np.dtype(f"u{plain.itemsize}")
    zero_or_nan = (plain == 0) | np.isnan(plain)
    np.testing.assert_array_equal(ours.view(bits)[~zero_or_nan], plain.view(bits)[~zero_or_nan])


@needs_kernels
@pytest.mark.parametrize("variant", USABLE)
@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_microbatch_in_one_call_has_the_bits_of_a_microbatch_step_by_step(
    action: str, chosen: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLEL_PPO_KERNEL", variant)
    worker = filled(ACTIONS[action], **SETTINGS[chosen])
    for minibatch in range(2):
        (gradient, statistics), (plain, plain_statistics) = both(worker, minibatch)
        assert np.abs(plain).max() > 0 and 0 < plain_statistics[:, 5].sum() < len(plain) * 6400
        assert_same_bits(gradient, plain)
        assert_same_bits(statistics, plain_statistics)
        worker.memory.tensor("parameters").mul_(1.1)


@needs_kernels
@pytest.mark.parametrize("action", ["nine choices", "six Gaussians"])
@pytest.mark.parametrize("name", ["observation", "log_prob", "advantage", "target_return"])
def test_what_is_not_finite_stays_so(action: str, name: str) -> None:
    for number in (np.nan, np.inf):
        worker = filled(ACTIONS[action], training__clip_value_loss=True)
        getattr(worker.memory, name)[3:5] = number
        (gradient, statistics), (plain, plain_statistics) = both(worker, 0)
        assert not np.isfinite(plain_statistics).all()
        assert_same_bits(gradient, plain)
        assert_same_bits(statistics, plain_statistics)
