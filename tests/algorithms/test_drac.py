"""DrAC: augmentations against slow twins, pixel by pixel; the regulariser against autograd through the
network.
"""

import colorsys

import numpy as np
import pytest
import torch
from torch import distributions

from parallel_ppo.algorithms import ALGORITHMS
from parallel_ppo.algorithms.augmentation import AUGMENTATIONS, augmented
from parallel_ppo.algorithms.drac import divergence, regularized
from parallel_ppo.envs.contract import ActionSpec, EnvSpec, Part
from parallel_ppo.envs.procgen import SPEC
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.api import available
from parallel_ppo.keyed import generator
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.network import Output
from parallel_ppo.policies.parameters import initialize, num_flat, views
from parallel_ppo.policies.policy import Policy, scaled_image
from parallel_ppo.settings.kinds import AUGMENTATION_KINDS
from parallel_ppo.training.planning import check_augmentation
from tests.algorithms.test_differentiation import ACTIONS, SAMPLES, samples
from tests.conftest import small_settings

SIDE = 16


def images(num: int = 6, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (num, side, side, 3), np.uint8)


def draws(number: int = 1) -> np.random.Generator:
    return generator(7, "augmentation", number)


# --- the images ---------------------------------------------------------------------------------------------


def pixelwise(name: str, pictures: np.ndarray) -> np.ndarray:
    """What each pixel becomes, one at a time; the draws in the order of the augmentation's own."""
    num, height, width, _ = pictures.shape
    rng, found = draws(), np.empty_like(pictures)
    if name == "crop":
        moved = rng.integers(-3, 4, (num, 2))  # 12 of 64 pixels
        inside = lambda place: min(max(place, 0), 15)  # noqa: E731
        source = lambda b, y, x: (inside(y + moved[b, 0]), inside(x + moved[b, 1]))  # noqa: E731
    elif name == "flip":
        mirrored = rng.integers(0, 2, num)
        source = lambda b, y, x: (y, 15 - x if mirrored[b] else x)  # noqa: E731
    else:
        turns = rng.integers(0, 4, num)
        source = lambda b, y, x: [(y, x), (x, 15 - y), (15 - y, 15 - x), (15 - x, y)][turns[b]]  # noqa: E731
    for b in range(num):
        for y in range(height):
            for x in range(width):
                found[b, y, x] = pictures[(b, *source(b, y, x))]
    return found


@pytest.mark.parametrize("name", ["crop", "flip", "rotate"])
def test_moved_pixels(name: str) -> None:
    pictures = images()
    found = AUGMENTATIONS[name](pictures, draws())
    assert np.array_equal(found, pixelwise(name, pictures))
    assert not np.array_equal(found, pictures) and np.array_equal(pictures, images())


@pytest.mark.parametrize("name", ["cutout", "cutout_color"])
def test_a_box_has_one_colour_and_the_rest_stays(name: str) -> None:
    pictures = images(200, 64)
    found = AUGMENTATIONS[name](pictures, draws())
    sizes = set()
    for before, after in zip(pictures, found, strict=True):
        changed = np.argwhere((before != after).any(2))
        (top, left), (bottom, right) = changed.min(0), changed.max(0) + 1
        box = after[top:bottom, left:right].reshape(-1, 3)
        assert (box == box[0]).all() and (name == "cutout_color" or not box.any())
        sizes |= {bottom - top, right - left}
    assert min(sizes) == 7 and max(sizes) == 21


def test_grey_is_the_luma() -> None:
    pictures = images()
    expected = np.round(pictures @ np.array([0.299, 0.587, 0.114]))
    found = AUGMENTATIONS["grayscale"](pictures, draws()).astype(float)
    assert np.abs(found - expected[..., None]).max() <= 1


def test_colour_jitter_pixel_by_pixel() -> None:
    pictures = images()
    found, rng = AUGMENTATIONS["color_jitter"](pictures, draws()), draws()
    factors, angles = rng.uniform(0.6, 1.4, (3, len(pictures))), rng.uniform(-np.pi, np.pi, len(pictures))
    for b, picture in enumerate(pictures.astype(float)):
        contrast, brightness, saturation = factors[:, b]
        mean, expected = picture.reshape(-1, 3).mean(0), np.empty_like(picture)
        for y, x in np.ndindex(SIDE, SIDE):
            luma, first, second = _yiq(mean + contrast * (picture[y, x] - mean))
            turned = (first + 1j * second) * np.exp(1j * angles[b]) * saturation
            expected[y, x] = brightness * np.array(_rgb(luma, turned.real, turned.imag))
        assert np.abs(found[b] - np.clip(expected, 0, 255)).max() <= 1.01


def _yiq(colour: np.ndarray) -> tuple[float, float, float]:
    red, green, blue = colour
    return (0.299 * red + 0.587 * green + 0.114 * blue, 0.596 * red - 0.274 * green - 0.322 * blue,
            0.211 * red - 0.523 * green + 0.312 * blue)  # fmt: skip


def _rgb(luma: float, first: float, second: float) -> tuple[float, float, float]:
    matrix = np.array([_yiq(unit) for unit in np.eye(3)]).T
    return tuple(np.linalg.solve(matrix, [luma, first, second]))


def test_hue_turns_and_grey_stays_grey() -> None:
    """The published jitter works on HSV; ours agrees with it on what has no hue."""
    grey = np.repeat(images()[..., :1], 3, 3)
    found = AUGMENTATIONS["color_jitter"](grey, draws())
    assert all(
        colorsys.rgb_to_hsv(*pixel / 255)[1] < 0.02 for pixel in found.reshape(-1, 3)[::7] if pixel.max() > 99
    )


def test_random_convolution_pixel_by_pixel() -> None:
    pictures = images(2)
    found, kernel = (
        AUGMENTATIONS["random_conv"](pictures, draws()),
        draws().normal(0, 1 / 27**0.5, (2, 3, 3, 3, 3)),
    )
    for b, y, x, c in np.ndindex(found.shape):
        total = 128.0
        for dy, dx, source in np.ndindex(3, 3, 3):
            row, column = np.clip([y + dy - 1, x + dx - 1], 0, SIDE - 1)
            total += kernel[b, c, source, dy, dx] * (float(pictures[b, row, column, source]) - 128)
        assert abs(float(found[b, y, x, c]) - np.clip(total, 0, 255)) <= 0.51


def test_the_tables_name_the_same_augmentations() -> None:
    assert set(AUGMENTATIONS) == set(AUGMENTATION_KINDS)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_one_key_is_one_outcome(name: str) -> None:
    pictures = torch.from_numpy(images(side=64))
    first, second, third = (augmented(name, pictures, SPEC, draws(number)) for number in (1, 1, 2))
    assert torch.equal(first, second) and first.shape == pictures.shape and first.is_contiguous()
    assert name == "grayscale" or not torch.equal(first, third)


def test_only_the_images_of_a_mixed_observation_change() -> None:
    parts = Part(False, (2,), 0), Part(True, (SIDE, SIDE, 3), 8)
    spec = EnvSpec((8 + SIDE * SIDE * 3,), "uint8", ActionSpec("categorical", (2,)), 0, parts)
    rows = torch.cat([torch.full((6, 8), 9, dtype=torch.uint8), torch.from_numpy(images()).reshape(6, -1)], 1)
    found = augmented("crop", rows, spec, draws())
    assert torch.equal(found[:, :8], rows[:, :8])
    expected = AUGMENTATIONS["crop"](images(), draws()).reshape(6, -1)
    assert np.array_equal(found[:, 8:].numpy(), expected) and not torch.equal(found, rows)


# --- the loss -----------------------------------------------------------------------------------------------


def distribution(spec: ActionSpec, outputs: torch.Tensor, log_std: torch.Tensor | None):
    if spec.kind == "categorical":
        return [distributions.Categorical(logits=part) for part in outputs.split(spec.sizes, 1)]
    if spec.kind == "bernoulli":
        return [distributions.Independent(distributions.Bernoulli(logits=outputs), 1)]
    return [distributions.Independent(distributions.Normal(outputs, log_std.exp()), 1)]


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_divergence_and_its_slopes(kind: str) -> None:
    spec, rng = ACTIONS[kind], torch.Generator().manual_seed(2)
    width = sum(spec.sizes) if spec.kind == "categorical" else spec.sizes[0]
    own, other = (torch.randn(9, width, generator=rng) * 2 for _ in range(2))
    log_std = torch.linspace(-1, 0.5, width) if kind == "gaussian" else None
    values, leaf = torch.zeros(9, 1), other.clone().requires_grad_()
    deviation = None if log_std is None else log_std.clone().requires_grad_()
    expected = sum(
        distributions.kl_divergence(mine, theirs)
        for mine, theirs in zip(
            distribution(spec, own, log_std), distribution(spec, leaf, deviation), strict=True
        )
    )
    expected.sum().backward()
    found = divergence(spec, Output(own, log_std, values), Output(other, log_std, values))
    np.testing.assert_allclose(found.kl, expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.by_action, leaf.grad, rtol=1e-4, atol=1e-5)
    if deviation is not None:
        np.testing.assert_allclose(found.by_log_std.sum(0), deviation.grad, rtol=1e-4, atol=1e-4)


def microbatch(kernels: str) -> tuple[Actor, torch.Tensor]:
    settings = small_settings("coinrun", "nature", training__kernels=kernels)
    flat = torch.zeros(num_flat(Policy(settings, SPEC)))
    actor = Actor(settings, SPEC, flat, torch.zeros(()), torch.ones(()))
    initialize(actor.policy, flat, seed=3)
    with torch.no_grad():
        actor.policy.action_head.weight.mul_(80)
    return actor, flat


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_microbatch_against_autograd_through_both_halves(kernels: str) -> None:
    if kernels == "native" and not available()[0]:
        pytest.skip("no kernels here")
    actor, flat = microbatch(kernels)
    pictures = torch.from_numpy(images(SAMPLES, 64))
    changed = augmented("crop", pictures, SPEC, draws())
    sampled = samples(actor.policy, scaled_image(pictures))
    sampled = sampled._replace(training=sampled.training.model_copy(update={"augmentation_coef": 0.7}))
    found = torch.zeros_like(flat)
    actor.network.begin_step((0,))
    output = actor.network.forward(actor.prepare(torch.cat([pictures, changed])))
    gradient, statistics = regularized(ALGORITHMS["ppo"], actor.network, output, sampled)
    actor.network.backward(gradient, actor.network.gradient_views(found))

    own, other = actor.policy(scaled_image(pictures)), actor.policy(scaled_image(changed))
    kl = distributions.kl_divergence(
        distributions.Categorical(logits=own.action.detach()), distributions.Categorical(logits=other.action)
    )
    wanted = kl + 0.5 * (other.value - own.value.detach()).square()
    loss = ALGORITHMS["ppo"].loss(own, sampled).loss + 0.7 * wanted.sum() / sampled.batch_size
    slopes, expected = torch.autograd.grad(loss, list(actor.policy.parameters())), torch.zeros_like(flat)
    for place, slope in zip(views(actor.policy, expected).values(), slopes, strict=True):
        place.copy_(slope)
    assert wanted.sum() > 1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert statistics.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    assert statistics.augmentation_loss == pytest.approx(float(wanted.sum().detach()), rel=1e-3)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "name", "reason"),
    [
        ((4,), "crop", "gives none"),
        ((84, 84, 4), "grayscale", "needs red, green and blue"),
        ((64, 96, 3), "rotate", "needs square images"),
    ],
)
def test_images_that_do_not_fit(shape: tuple[int, ...], name: str, reason: str) -> None:
    settings = small_settings(training__augmentation=name)
    with pytest.raises(InputError, match=f"training.augmentation: '{name}' .*{reason}"):
        check_augmentation(settings, EnvSpec(shape, "uint8", ActionSpec("categorical", (2,)), 0))


def test_a_name_or_a_coefficient_that_means_nothing() -> None:
    with pytest.raises(InputError, match=r"training.augmentation: got 'blur'; expected none, crop"):
        small_settings(training__augmentation="blur")
    with pytest.raises(InputError, match=r"training.augmentation_coef: has no effect"):
        small_settings(training__augmentation_coef=0.5)
