"""Masks in `info["action_mask"]`: in training, restored, in evaluation; never a forbidden action (the
environment would raise).
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tests.envs.sample_envs  # noqa: F401  (registers them)
from parallel_ppo.commands import train
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.envs.families import make_slice, probe
from parallel_ppo.exits import InputError
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings
from parallel_ppo.workers import playing
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import InlinePool
from parallel_ppo.workers.tasks import COLLECT, REVALUE, Task
from parallel_ppo.workers.worker import Worker
from tests.conftest import command, small_settings

ENV = "tests.envs.sample_envs:Masked-v0"
SMALL = ["--num-envs", "16", "--n-steps", "20", "--batch-size", "80", "--quiet", "--seed", "5"]


def run(directory: Path, *more: str, steps: int = 960, says: str = "tuple") -> dict:
    chosen = ["--env", ENV, "--set", f"env.kwargs={{says: {says}}}", *SMALL, "--total-timesteps", str(steps)]
    assert train.train_sequential([*chosen, *more, "--output-dir", str(directory)]) == 0
    return json.loads((directory / "summary.json").read_text())


def random_actor(settings: Settings, spec: EnvSpec) -> Actor:
    flat = torch.from_numpy(np.random.default_rng(2).normal(size=num_flat(Policy(settings, spec)))).float()
    actor = Actor(settings, spec, flat, torch.zeros(3), torch.ones(3))
    actor.refresh()
    return actor


@pytest.mark.parametrize("says", ["array", "tuple"])
def test_no_forbidden_action_is_ever_taken(says: str, tmp_path: Path) -> None:
    run(tmp_path, says=says, steps=10_000)
    assert "action_masks: true" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("deterministic", [True, False])
def test_no_forbidden_action_is_taken_in_an_evaluation(deterministic: bool) -> None:
    """Nor in a film, which plays the same way."""
    settings = small_settings(ENV, env__kwargs={"says": "tuple"}, evaluation__deterministic=deterministic)
    actor = random_actor(settings, probe(settings))
    assert len(list(playing.play_slice(settings, "train", 0, 0, actor=actor, num_episodes=8))) == 8


def test_the_loss_sees_the_masked_policy(tmp_path: Path) -> None:
    """In the first step of an iteration nothing has changed yet: the policy that learns is the one that
    acted.
    """
    run(tmp_path, "--n-epochs", "1", "--batch-size", "320", steps=320)
    [record] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert abs(record["approx_kl"]) < 1e-6


def test_samples_that_are_revalued_are_masked_too() -> None:
    """Without a lag, the learner's log-probabilities equal the recorded ones."""
    settings = small_settings(
        ENV, training__algorithm="impala", training__lag=0, training__n_epochs=1, training__batch_size=256
    )
    spec = probe(settings)
    memory = Memory(settings, spec, num_flat(Policy(settings, spec)))
    memory.parameters[:] = np.random.default_rng(2).normal(size=memory.parameters.shape)
    pool = InlinePool(Worker(settings, spec, memory), range(settings.sizes.num_slices), 0)
    pool.run([Task(COLLECT, 0, 0), Task(REVALUE, 0, 0)])
    np.testing.assert_allclose(memory.learner_log_prob[:, :8], memory.log_prob[:, :8], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kwargs", ["{says: tuple}", "{saves: true}"])
def test_a_resumed_run_masks_its_first_step_alike(kwargs: str, tmp_path: Path) -> None:
    chosen = ["--set", f"env.kwargs={kwargs}"]
    assert make_slice(small_settings(ENV, env__kwargs={"saves": True}), 0).singles[0].own is not None
    whole = run(tmp_path / "whole", *chosen)
    run(tmp_path / "halves", *chosen, steps=640)
    resume = ["--resume", str(tmp_path / "halves"), "--total-timesteps", "960", "--quiet"]
    assert train.train_sequential(resume) == 0
    resumed = json.loads((tmp_path / "halves" / "summary.json").read_text())
    assert resumed["bit_exact"] and resumed["policy_sha256"] == whole["policy_sha256"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_workers_mask_alike(tmp_path: Path) -> None:
    chosen = ["--env", ENV, "--set", "env.kwargs={says: tuple}", *SMALL, "--total-timesteps", "960"]
    two = command("train_parallel_timed.py", *chosen, "--num-workers", "2", directory=tmp_path / "two")
    assert two.summary["policy_sha256"] == run(tmp_path / "one")["policy_sha256"]


def test_masks_can_be_ignored_and_are_off_without_one(tmp_path: Path) -> None:
    without = small_settings(ENV, env__kwargs={"says": "nothing"})
    assert not probe(without).masks_actions and make_slice(without, 0).action_mask is None
    assert not probe(
        small_settings(ENV, env__kwargs={"says": "nothing"}, env__action_masks=False)
    ).masks_actions
    masked = small_settings(ENV, env__slice_envs=8)
    env = make_slice(masked, 0)
    env.reset()
    assert probe(masked).masks_actions and env.action_mask.shape == (8, 6)
    run(tmp_path, says="nothing", steps=320)
    assert "action_masks: false" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("once", "returned from step no info['action_mask']"),
        ("none allowed", "returned from reset an info['action_mask'] that allows nothing"),
        ("too short", "returned from reset an info['action_mask'] of 5 numbers; expected 6"),
    ],
)
def test_masks_that_do_not_fit_are_told(says: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        probe(small_settings(ENV, env__kwargs={"says": says}))
    assert expected in str(caught.value)


def test_the_largest_draw_takes_the_last_choice_that_is_allowed() -> None:
    """However the sum of all probabilities was rounded, no draw falls on a forbidden choice behind it."""
    settings = small_settings()
    spec = EnvSpec((3,), "float32", ActionSpec("categorical", (2, 9)), 0, masks_actions=True)
    actor = random_actor(settings, spec)
    mask = np.tile(np.array([1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0], np.uint8), (4096, 1))
    rows = 0.1 * np.random.default_rng(1).normal(size=(4096, 3)).astype(np.float32)
    for draw in (0.0, float(np.nextafter(np.float32(1), np.float32(0)))):
        acted = actor.act(rows, np.full((4096, 2), draw, np.float32), mask)
        assert acted.action[:, 0].max() == 0 and mask[0, 2 + acted.action[:, 1].astype(int)].all()
        assert np.isfinite(acted.log_prob).all()
    assert mask[0, 2 + actor.most_likely(rows, mask)[:, 1].astype(int)].all()
