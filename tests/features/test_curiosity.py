"""Curiosity's arithmetic against slow twins that are written as the definitions read."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_ppo.commands.train import train_sequential
from parallel_ppo.envs.contract import ActionSpec, EnvSpec, Part, ReplayCheck
from parallel_ppo.features.curiosity import MODELS, whitening
from parallel_ppo.features.curiosity.encoders import Encoder, FloatNature, NativeNature, draw
from parallel_ppo.features.curiosity.episodic import Memories, episodic_rewards
from parallel_ppo.features.curiosity.icm import Icm
from parallel_ppo.features.curiosity.inverse import inverse_loss
from parallel_ppo.features.curiosity.model import CollectedColumns, Transitions
from parallel_ppo.features.curiosity.ngu import Ngu
from parallel_ppo.features.curiosity.rnd import Rnd
from parallel_ppo.features.curiosity.state import intrinsic_advantages
from parallel_ppo.features.moments import Moments
from parallel_ppo.features.rewards import RewardNormalizer
from parallel_ppo.kernels import native
from parallel_ppo.memory.snapshots import Environments
from parallel_ppo.policies import heads
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.settings.kinds import CURIOSITY_KINDS
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.sizes import predictor_samples
from parallel_ppo.training import planning
from parallel_ppo.workers.memory import Memory
from tests.conftest import small_settings
from tests.kernels.networks import needs_kernels

DISCRETE = ActionSpec("categorical", (3,))
VECTOR = EnvSpec((5,), "float32", DISCRETE, 0)
PICTURE = EnvSpec((64, 64, 6), "uint8", DISCRETE, 0)
PARTS = (Part(False, (3,), 0), Part(True, (4, 4, 3), 12), Part(True, (40, 40, 1), 60))
MIXED = EnvSpec((60 + 1600,), "uint8", DISCRETE, 0, PARTS)
SPECS = {"vector": VECTOR, "mixed": MIXED, "picture": PICTURE}


def settings_for(kind: str, kernels: str = "torch", **flags: object) -> Settings:
    return small_settings(training__kernels=kernels, curiosity__kind=kind, **flags)


def rows_of(spec: EnvSpec, num: int, seed: int = 1) -> np.ndarray:
    draws = np.random.default_rng(seed)
    if spec.observation_dtype == "float32":
        return (draws.normal(size=(num, *spec.observation_shape)) * 3 + 1).astype(np.float32)
    rows = draws.integers(0, 256, (num, *spec.observation_shape)).astype(np.uint8)
    if spec.vector_shape:
        spec.vectors(rows)[...] = draws.normal(size=(num, *spec.vector_shape)) * 100
    return rows


def flat_rows(spec: EnvSpec, rows: np.ndarray) -> np.ndarray:
    """Every element as a number, part by part."""
    if not spec.parts:
        return rows.reshape(len(rows), -1).astype(np.float64)
    vector, images = spec.vectors(rows), rows[:, spec.parts[0].end :]
    return np.concatenate([vector, images], 1).astype(np.float64)


def whitener(spec: EnvSpec, settings: Settings, rows: np.ndarray) -> whitening.Whitening:
    found = Moments(float(len(rows)), *whitening.moments(spec, rows))
    mean, scale = found.mean, whitening.scale(spec, found)
    return whitening.Whitening(
        settings, spec, *(torch.from_numpy(a.astype(np.float32)) for a in (mean, scale))
    )


@pytest.mark.parametrize("name", SPECS)
def test_observations_are_whitened_element_by_element(name: str) -> None:
    spec, rows = SPECS[name], rows_of(SPECS[name], 600)
    wide = flat_rows(spec, rows)
    mean, squares = whitening.moments(spec, rows)
    assert np.allclose(mean, wide.mean(0), rtol=1e-12)
    assert np.allclose(squares, wide.var(0) * len(wide), rtol=1e-9)
    parts = whitener(spec, settings_for("rnd"), rows)(torch.from_numpy(rows[:50]))
    found = np.concatenate([part.reshape(50, -1) for part in parts], 1)
    is_byte = np.concatenate([np.full(math.prod(p.shape), p.is_image) for p in whitening.parts_of(spec)])
    deviation = np.sqrt(wide.var(0) + np.where(is_byte, 1e-2, 1e-8))
    assert np.allclose(found, np.clip((wide[:50] - wide.mean(0)) / deviation, -5, 5), atol=1e-4)


@needs_kernels
def test_kernels_add_up_bytes_exactly() -> None:
    for shape in ((1, 12288), (600, 1000), (70_000, 7)):
        values = torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8))
        values[-1] = 255
        assert torch.equal(native.byte_sums(values), whitening.byte_sums(values))
    assert native.byte_sums(torch.full((70_000, 3), 255, dtype=torch.uint8))[1, 0] == 70_000 * 255**2


def test_bytes_stand_for_whitened_values() -> None:
    rows = rows_of(PICTURE, 300)
    floats, bytes_ = (
        whitener(PICTURE, settings_for("rnd", kernels), rows)(torch.from_numpy(rows[:20]))[0]
        for kernels in ("torch", "native")
    )
    assert bytes_.dtype == torch.uint8
    assert (bytes_ * (10 / 255) - 5 - floats).abs().max() <= 5 / 255 + 1e-5


def test_kernels_see_what_torch_sees() -> None:
    """The same parameters on the same values, and their gradients: only the kernels' rounding differs."""
    shape, settings = (64, 64, 3), settings_for("rnd", "native")
    native, plain = NativeNature(shape, settings), FloatNature(*shape)
    flat = torch.zeros(num_flat(native))
    draw(native, flat, 3, "test")
    for network in (native, plain):
        bind(network, flat)
    pixels = torch.randint(
        0, 256, (16, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    values, slope = pixels * (10 / 255) - 5, torch.linspace(-1, 1, 512)
    native.begin_step((0, 0, 0))
    found = []
    for network, seen in ((native, pixels), (plain, values)):
        features = network(seen)
        gradients = torch.autograd.grad((features * slope).sum(), list(network.parameters()))
        found.append([features.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=2e-3, atol=2e-4 * float(theirs.abs().max()))
    native.begin_inference()
    with torch.inference_mode():
        assert torch.allclose(native(pixels), found[0][0], rtol=1e-4, atol=1e-4)


def test_only_the_newest_frame_is_looked_at() -> None:
    settings = settings_for("rnd")
    encoder = Encoder(settings, PICTURE, last_frame=True)
    seen = torch.randn(4, 64, 64, 6)
    other = seen.clone()
    other[..., :3] = 0
    assert torch.equal(encoder([seen]), encoder([other]))
    other[..., 3:] = 0
    assert not torch.equal(encoder([seen]), encoder([other]))


def rollout(spec: EnvSpec, settings: Settings, num_steps: int, num_envs: int) -> CollectedColumns:
    draws = np.random.default_rng(4)
    rows = rows_of(spec, (num_steps + 1) * num_envs)
    return CollectedColumns(
        rows.reshape(num_steps + 1, num_envs, *rows.shape[1:]),
        draws.integers(0, 3, (num_steps, num_envs, 1)).astype(np.float32),
        (draws.random((num_steps + 1, num_envs)) < 0.2).astype(np.uint8),
        np.full((num_steps, num_envs), np.nan, np.float32),
        np.full((num_steps, num_envs, 64), np.nan, np.float32),
    )


def drawn(model: torch.nn.Module, seed: int = 5) -> None:
    flat = torch.zeros(num_flat(model))
    draw(model, flat, seed, "test")
    bind(model, flat)


def transitions(columns: CollectedColumns, rows: list[int]) -> Transitions:
    flat = {
        name: torch.from_numpy(array.reshape(-1, *array.shape[2:]))
        for name, array in columns._asdict().items()
        if isinstance(array, np.ndarray)
    }
    return Transitions(flat, torch.tensor(rows), columns.observation.shape[1])


def test_rnd_rewards_and_learns_the_error_on_what_comes_next() -> None:
    settings, num_envs = settings_for("rnd"), 3
    model, columns = Rnd(settings, VECTOR), rollout(VECTOR, settings, 40, num_envs)
    drawn(model)
    whiten = whitener(VECTOR, settings, rows_of(VECTOR, 300))
    model.begin_inference()
    model.reward(whiten, columns)
    with torch.no_grad():
        for step, env in ((0, 0), (17, 2), (39, 1)):
            seen = whiten(torch.from_numpy(columns.observation[step + 1, env : env + 1]))
            error = float((model.predictor(seen) - model.target(seen)).square().mean())
            assert math.isclose(columns.intrinsic_reward[step, env], error, rel_tol=1e-4)
    rows = [0, 17 * num_envs + 2, 39 * num_envs + 1]
    losses = model.losses(whiten, transitions(columns, rows))
    assert math.isclose(losses.total.item(), sum(columns.intrinsic_reward.reshape(-1)[rows]), rel_tol=1e-4)
    last = model.predictor.head[-1]
    (found,) = torch.autograd.grad(losses.total, [last.bias])
    seen = whiten(transitions(columns, rows).after("observation"))
    with torch.no_grad():
        expected = (2 * (model.predictor(seen) - model.target(seen)) / 64).sum(0)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in model.target.parameters())


def test_the_target_is_drawn_again_from_the_seed_alone() -> None:
    one, two = Rnd(settings_for("rnd"), VECTOR), Rnd(settings_for("rnd"), VECTOR)
    other = Rnd(settings_for("rnd", training__seed=8), VECTOR)
    first, second, third = (next(model.target.parameters()) for model in (one, two, other))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert not torch.equal(first, next(one.predictor.parameters()))
    assert len(list(one.parameters())) == len(list(one.predictor.parameters()))


def test_intrinsic_returns_are_filtered_forward_over_episodes_and_iterations() -> None:
    reward = np.random.default_rng(2).random((30, 4)).astype(np.float32)
    whole, halves = (RewardNormalizer(0.9, np.zeros(4), Moments.empty()) for _ in range(2))
    never = np.zeros((31, 4), bool)
    whole.scale(reward, never, np.inf)
    for part in (reward[:13], reward[13:]):
        scaled = halves.scale(part, never[: len(part) + 1], np.inf)
    running, seen = np.zeros(4), []
    for row in reward.astype(np.float64):
        running = 0.9 * running + row
        seen.append(running)
    assert np.allclose(whole.running, running) and np.allclose(halves.running, running)
    assert np.allclose(scaled, reward[13:] / np.std(seen), rtol=1e-6)


def test_intrinsic_advantages_do_not_end_with_an_episode() -> None:
    draws = np.random.default_rng(3)
    reward, value = (draws.random((n, 2)).astype(np.float32) for n in (6, 7))
    found = intrinsic_advantages(reward=reward, value=value, gamma=0.9, gae_lambda=0.8)
    for t in range(6):
        deltas = [reward[k] + 0.9 * value[k + 1] - value[k] for k in range(t, 6)]
        assert np.allclose(found[t], sum(0.72**k * delta for k, delta in enumerate(deltas)), rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ((64, 64, 64, 64), 0.25, (64, 0, 0, 0)),
        ((64, 64, 64, 64), 0.4, (64, 38, 0, 0)),
        ((4, 3, 3), 1.0, (4, 3, 3)),
        ((3,), 0.25, (1,)),
        ((1, 1), 0.1, (1, 0)),
    ],
)
def test_the_first_microbatches_of_every_slice_teach(
    sizes: tuple[int, ...], share: float, expected: tuple[int, ...]
) -> None:
    assert predictor_samples(sizes, share) == expected


@pytest.mark.parametrize(
    "action",
    [
        DISCRETE,
        ActionSpec("categorical", (2, 4)),
        ActionSpec("gaussian", (2,)),
        ActionSpec("bernoulli", (2,)),
    ],
)
def test_inverse_loss_names_actions(action: ActionSpec) -> None:
    draws = np.random.default_rng(6)
    outputs = draws.normal(size=(7, heads.num_outputs(action)))
    if action.kind == "gaussian":
        taken = draws.normal(size=(7, 2))
        expected = [
            0.5 * sum((o - a) ** 2 for o, a in zip(*row, strict=True))
            for row in zip(outputs, taken, strict=True)
        ]
    elif action.kind == "bernoulli":
        taken = draws.integers(0, 2, (7, 2)).astype(float)
        on = 1 / (1 + np.exp(-outputs))
        expected = -np.log(np.where(taken == 1, on, 1 - on)).sum(1)
    else:
        taken = np.stack([draws.integers(0, size, 7) for size in action.sizes], 1)
        expected, start = np.zeros(7), 0
        for component, size in enumerate(action.sizes):
            for row in range(7):
                logits = outputs[row, start : start + size]
                expected[row] -= math.log(
                    math.exp(logits[taken[row, component]]) / sum(map(math.exp, logits))
                )
            start += size
    found = inverse_loss(action, *(torch.tensor(a, dtype=torch.float32) for a in (outputs, taken)))
    assert np.allclose(found, expected, rtol=1e-4)


def test_icm_rewards_what_is_not_foreseen_within_an_episode() -> None:
    settings, num_envs = settings_for("icm"), 3
    model, columns = Icm(settings, VECTOR), rollout(VECTOR, settings, 40, num_envs)
    drawn(model)
    whiten = whitener(VECTOR, settings, rows_of(VECTOR, 300))
    model.begin_inference()
    model.reward(whiten, columns)
    ends = columns.episode_start[1:] == 1
    assert (
        ends.any()
        and not columns.intrinsic_reward[ends].any()
        and (columns.intrinsic_reward[~ends] > 0).all()
    )
    step, env = np.argwhere(~ends)[-1]
    with torch.no_grad():
        before, after = (
            model.encoder(whiten(torch.from_numpy(columns.observation[t, env : env + 1])))
            for t in (step, step + 1)
        )
        one_hot = torch.eye(3)[int(columns.action[step, env, 0])].unsqueeze(0)
        foreseen = model.foresee(torch.cat((before, one_hot), 1))
    expected = 0.5 * float((foreseen - after).square().sum())
    assert math.isclose(columns.intrinsic_reward[step, env], expected, rel_tol=1e-4)


def test_icm_learns_features_from_the_inverse_model_alone() -> None:
    """Its gradient is that of the weighted losses, transition by transition; ends of episodes have none."""
    settings, num_envs = settings_for("icm"), 3
    model, columns = Icm(settings, VECTOR), rollout(VECTOR, settings, 40, num_envs)
    drawn(model)
    whiten = whitener(VECTOR, settings, rows_of(VECTOR, 300))
    rows = [0, 5, 31, 77, 100, 119]
    ends = columns.episode_start[1:].reshape(-1)
    rows += [int(np.argmax(ends))]
    losses = model.losses(whiten, transitions(columns, rows))
    parameters = list(model.parameters())
    found = torch.autograd.grad(losses.total, parameters)
    inverse, forward = torch.zeros(()), torch.zeros(())
    for row in rows:
        if ends[row]:
            continue
        one = transitions(columns, [row])
        before, after = (
            model.encoder(whiten(one.here("observation"))),
            model.encoder(whiten(one.after("observation"))),
        )
        chosen = one.here("action").long()[0]
        inverse = (
            inverse - torch.log_softmax(model.inverse(torch.cat((before, after), 1)), 1)[0, chosen].sum()
        )
        seen = torch.cat((before.detach(), torch.eye(3)[chosen]), 1)
        forward = forward + 0.5 * (model.foresee(seen) - after.detach()).square().sum()
    expected = torch.autograd.grad(10 * (0.8 * inverse + 0.2 * forward), parameters)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def memories(num_envs: int, entries: int, width: int) -> Memories:
    numbers = np.zeros((num_envs, entries * width), np.float32)
    return Memories(numbers, *(np.zeros(num_envs, np.int64) for _ in range(2)), np.zeros((num_envs, 2)))


def slow_episodic_rewards(embedding: np.ndarray, start: np.ndarray, entries: int, k: int) -> np.ndarray:
    """One environment, in plain Python."""
    seen: list = []
    distances: list[float] = []
    rewards = []
    for t, here in enumerate(embedding.tolist()):
        if start[t]:
            seen = [here]
            rewards.append(0.0)
            continue
        near = sorted(sum((a - b) ** 2 for a, b in zip(here, other, strict=True)) for other in seen)[:k]
        distances += near
        mean = sum(distances) / len(distances)
        kernel = sum(1e-4 / (max(d / mean - 0.008, 0) + 1e-4) for d in near)
        similarity = math.sqrt(kernel) + 0.001
        rewards.append(0.0 if similarity > 1.4 else 1 / similarity)
        seen = [*seen, here][-entries:]
    return np.array(rewards[1:])


def walk() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings that come back to where they were, and some episodes."""
    draws = np.random.default_rng(8)
    places = draws.normal(size=(12, 4)).astype(np.float32)
    embedding = places[draws.integers(0, 12, (60, 2))] + draws.normal(0, 1e-3, (60, 2, 4)).astype(np.float32)
    start = draws.random((60, 2)) < 0.05
    start[0] = True
    return embedding, start


def test_episodic_rewards_are_those_of_a_slow_twin() -> None:
    chosen = settings_for("ngu", curiosity__ngu_neighbours=5, curiosity__ngu_max_similarity=1.4).curiosity
    embedding, start = walk()
    found = episodic_rewards(memories(2, 16, 4), embedding, start, chosen)
    assert start[1:].any() and (found == 0).sum() > start[1:].sum()  # some are too similar
    for env in range(2):
        expected = slow_episodic_rewards(embedding[:, env], start[:, env], 16, 5)
        assert np.allclose(found[:, env], expected, rtol=1e-3)


def test_a_saved_and_restored_episodic_memory_goes_on_as_if_nothing_had_been() -> None:
    """Through the shared slots and a checkpoint's packing, between two iterations."""
    settings = small_settings(
        curiosity__kind="ngu", curiosity__ngu_memory=16, curiosity__ngu_embedding=4, env__num_envs=2,
        training__batch_size=32,
    )  # fmt: skip
    embedding, start = walk()
    whole = memories(2, 16, 4)
    expected = episodic_rewards(whole, embedding, start, settings.curiosity)
    half = memories(2, 16, 4)
    first = episodic_rewards(half, embedding[:31], start[:31], settings.curiosity)
    shared, other = Memory(settings, VECTOR, 16), Memory(settings, VECTOR, 16)
    for name, rows in half._asdict().items():
        getattr(shared, name)[1] = rows
    Environments.at(other, 1).unpack(Environments.at(shared, 1).pack())
    assert Environments.at(other, 1).misfit(Environments.at(shared, 1).pack()) is None
    restored = Memories(*(getattr(other, name)[1].copy() for name in Memories._fields))
    second = episodic_rewards(restored, embedding[30:], start[30:], settings.curiosity)
    assert np.array_equal(np.concatenate([first, second]), expected)
    assert 0 < half.episodic_used.min() < 16 * 4  # a part of it travelled
    for name in ("episodic_used", "episodic_next", "episodic_distance"):
        assert np.array_equal(getattr(restored, name), getattr(whole, name)), name


def test_ngu_multiplies_by_what_is_new_in_its_life() -> None:
    settings = settings_for("ngu")
    model, columns = Ngu(settings, VECTOR), rollout(VECTOR, settings, 20, 3)
    drawn(model)
    columns = columns._replace(
        novelty=np.zeros((20, 3), np.float32), episodic_size=np.zeros((1, 3), np.float32),
        carried=memories(3, 64, 32)._asdict(), novelty_scale=(0.1, 4.0),
    )  # fmt: skip
    columns.episode_start[0] = 1
    whiten = whitener(VECTOR, settings, rows_of(VECTOR, 300))
    model.begin_inference()
    model.reward(whiten, columns)
    with torch.no_grad():
        embedding = model.embedding(whiten(columns.rows(slice(0, 21)))).numpy().reshape(21, 3, 32)
    alone = episodic_rewards(memories(3, 64, 32), embedding, columns.episode_start, settings.curiosity)
    factor = np.clip(1 + (columns.novelty - 0.1) * 4, 1, 5)
    assert len(set(factor.reshape(-1).tolist())) > 10
    assert np.allclose(columns.intrinsic_reward, alone * factor, rtol=1e-3)
    assert (columns.episodic_size > 0).all() and (columns.episodic_size <= 21).all()
    losses = model.losses(whiten, transitions(columns, [0, 5, 40]))
    assert losses.predictor is not None and losses.inverse is not None
    assert math.isclose(losses.total.item(), losses.predictor.item() + losses.inverse.item(), rel_tol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_names_the_losses_that_it_fills_in(kind: str) -> None:
    settings = settings_for(kind)
    model, columns = MODELS[kind](settings, VECTOR), rollout(VECTOR, settings, 20, 3)
    drawn(model)
    columns.target_features[...] = 0
    losses = model.losses(whitener(VECTOR, settings, rows_of(VECTOR, 300)), transitions(columns, [0, 5, 40]))
    assert tuple(losses.sums()) == model.LOSSES


def test_the_settings_know_the_same_kinds() -> None:
    assert set(CURIOSITY_KINDS) == {"none", *MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("is_tried", [True, False])
def test_observations_that_never_change_are_refused(
    is_tried: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the trial before anything starts; by the warm-up if the trial could not decide."""
    if not is_tried:
        monkeypatch.setattr(planning, "check_replay", lambda settings: ReplayCheck())
    name, run = "tests.envs.sample_envs:Chain-v0", tmp_path / "run"
    shape = ["--env", name, "--num-envs", "2", "--n-steps", "8", "--batch-size", "16", "--quiet"]
    chosen = ["--curiosity", "rnd", "--set", "curiosity.warmup_steps=20", "--output-dir", str(run)]
    assert train_sequential([*shape, *chosen]) == 2
    errors = capsys.readouterr().err
    assert f"the observations of {name} cannot be whitened, they do not change" in errors
    assert errors.count("\n") == 1
    assert run.exists() is not is_tried
