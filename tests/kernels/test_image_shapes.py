"""Trunks on our kernels against the plain torch formulation, in every shape of images and networks, and
against themselves with other instruction sets and batches; which shapes they know.
"""

import functools
from pathlib import Path

import pytest
import torch

from parallel_ppo.kernels.choice import unsuitable
from parallel_ppo.kernels.native import NativeTrunk
from tests.conftest import command
from tests.kernels.networks import (
    USABLE,
    Shape,
    all_equal,
    make_case,
    native_result,
    needs_kernels,
    plain_result,
    plain_trunk,
    relative_error,
    run_native,
)

SHAPES: list[tuple[str, Shape, int]] = [  # network, image, factor
    ("impala", (64, 64, 3), 1),
    ("impala", (84, 84, 3), 1),
    ("impala", (96, 96, 1), 1),
    ("impala", (65, 65, 3), 1),
    ("impala", (66, 66, 2), 3),
    ("impala", (64, 64, 3), 2),
    ("impala", (83, 83, 4), 2),
    ("impoola", (64, 64, 3), 1),
    ("impoola", (90, 90, 4), 3),
    ("impoola", (64, 64, 12), 4),
    ("nature", (64, 64, 3), 1),
    ("nature", (64, 64, 1), 1),
    ("nature", (64, 64, 12), 1),
    ("nature", (84, 84, 4), 1),
    ("nature", (84, 84, 12), 1),
    ("small_image", (1, 1, 1), 1),
    ("small_image", (5, 5, 3), 1),
    ("small_image", (7, 7, 3), 1),
    ("small_image", (9, 5, 64), 1),
    ("small_image", (16, 16, 1), 1),
    ("small_image", (20, 27, 4), 1),
    ("small_image", (32, 32, 3), 1),
    ("small_image", (3, 32, 2), 1),
]
each_shape = pytest.mark.parametrize(("network", "shape", "factor"), SHAPES)
USUAL = [shape for shape in SHAPES if shape[1] in ((64, 64, 3), (7, 7, 3)) and shape[2] == 1]
each_network = pytest.mark.parametrize(("network", "shape"), [shape[:2] for shape in USUAL])


@needs_kernels
@each_shape
@pytest.mark.parametrize("num_samples", [2, 18])
def test_every_variant_gives_the_bits_of_the_others_and_the_plain_result(
    network: str, shape: Shape, factor: int, num_samples: int
) -> None:
    case = make_case(network, num_samples, shape, 0, factor, distinct=2)
    results = [native_result(network, case, variant) for variant in USABLE]
    assert all(all_equal(result, results[0]) for result in results)
    for place, (result, truth) in enumerate(zip(results[0], plain_result(network, case), strict=True)):
        assert relative_error(result, truth) < 3e-5, place


@functools.cache
def plain_result_of_case(network: str, num_samples: int) -> list[torch.Tensor]:
    return plain_result(network, make_case(network, num_samples))


@needs_kernels
@each_network
@pytest.mark.parametrize("variant", USABLE)
@pytest.mark.parametrize("num_samples", [1, 7, 70])
def test_features_and_gradients_equal_the_plain_formulation(
    network: str, shape: Shape, variant: str, num_samples: int
) -> None:
    results = native_result(network, make_case(network, num_samples, shape), variant)
    truths = plain_result_of_case(network, num_samples)
    assert len(results) == {"impala": 33, "impoola": 33, "nature": 9, "small_image": 8}[network]
    for place, (result, truth) in enumerate(zip(results, truths, strict=True)):
        assert relative_error(result, truth) < 3e-5, place


@needs_kernels
@pytest.mark.parametrize(
    ("network", "shape", "factor"),
    [*USUAL, ("impala", (84, 84, 3), 1), ("impala", (64, 64, 3), 3), ("small_image", (32, 32, 3), 1)],
)
def test_the_error_is_of_the_size_of_torch_own(network: str, shape: Shape, factor: int) -> None:
    case = make_case(network, 16, shape, factor=factor, distinct=2)
    observation, parameters, gradient = case
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    features = plain_trunk(network, observation, leaves)
    theirs = [features.detach(), *torch.autograd.grad(features, leaves, gradient)]
    ours, truths = native_result(network, case), plain_result(network, case)
    for our, their, truth in zip(ours, theirs, truths, strict=True):
        assert relative_error(our, truth) < 10 * relative_error(their, truth) + 1e-6


@needs_kernels
def test_flat_images_choose_the_first_of_equal_pixels() -> None:
    """Game backgrounds are flat, so windows of the first max-pool are full of ties; torch takes the first."""
    case = make_case("impala", 4)
    case[0][:, :, :40] = 77
    results, truths = native_result("impala", case), plain_result("impala", case)
    assert relative_error(results[0], truths[0]) < 3e-5
    assert relative_error(results[1], truths[1]) < 1e-3


@needs_kernels
@each_shape
def test_same_bits_after_other_sizes_and_after_a_nan(network: str, shape: Shape, factor: int) -> None:
    """Nothing is left outside the image, where it would be taken for the image's border."""
    cases = [make_case(network, size, shape, 3, factor) for size in (9, 1, 2, 20)]
    native = NativeTrunk(network, shape, None, factor)
    first = run_native(native, cases[0])
    for other in cases[1:]:
        run_native(native, other)
        assert all_equal(first, run_native(native, cases[0]))
    observation, parameters, gradient = cases[0]
    broken = [parameters[0], parameters[1] * float("nan"), *parameters[2:]]
    assert run_native(native, (observation, broken, gradient))[0].isnan().any()
    assert all_equal(first, run_native(native, cases[0]))


@needs_kernels
@each_shape
def test_inference_gives_the_bits_of_training_and_ignores_the_rest_of_the_batch(
    network: str, shape: Shape, factor: int
) -> None:
    observation, parameters, _ = make_case(network, 20, shape, 0, factor)
    native = NativeTrunk(network, shape, None, factor)
    native.load(parameters, training=True)
    trained, _ = native.forward(observation)
    assert torch.equal(native.features(observation), trained)
    assert torch.equal(native.features(observation[5:13].contiguous()), trained[5:13])


@needs_kernels
@each_network
def test_two_forwards_before_their_backwards(network: str, shape: Shape) -> None:
    native = NativeTrunk(network, shape)
    observations = [make_case(network, 6, seed=seed)[0] for seed in (1, 2)]
    _, parameters, gradient = make_case(network, 6)
    native.load(parameters, training=True)
    passed = [native.forward(observation) for observation in observations]
    for observation, (features, activations) in zip(observations, passed, strict=True):
        gradients = [torch.empty_like(parameter) for parameter in parameters]
        native.backward(observation, features, activations, gradient, gradients)
        assert all_equal(gradients, native_result(network, (observation, parameters, gradient))[1:])


@needs_kernels
@each_network
def test_a_nan_is_not_hidden(network: str, shape: Shape) -> None:
    case = make_case(network, 2, shape)
    case[1][0][3] = float("nan")
    assert native_result(network, case)[0].isnan().any()


@pytest.mark.parametrize(
    ("policy", "shape", "factor", "reason"),
    [
        ("impala", (84, 64, 3), 1, "84x64"),
        ("impala", (63, 63, 3), 1, "images are 63x63, the kernels of impala know 64x64 to 96x96"),
        ("impoola", (97, 97, 3), 1, "images are 97x97, the kernels of impoola know 64x64 to 96x96"),
        ("impala", (64, 64, 3), 1.5, "the width is 1.5, the kernels know whole numbers up to 4"),
        ("impala", (64, 64, 3), 5, "the width is 5"),
        ("nature", (96, 96, 3), 1, "images are 96x96, the kernels of nature know 64x64 and 84x84"),
        ("nature", (64, 64, 13), 1, "13 image channels"),
        ("small_image", (7, 33, 3), 1, "images are 7x33, the kernels of small_image know 1x1 to 32x32"),
        ("small_image", (7, 7, 65), 1, "65 image channels, the kernels know 1 to 64"),
        (
            "my_module:MyTrunk",
            (7, 7, 3),
            1,
            "the network is my_module:MyTrunk, the kernels know impala, impoola, nature, small_image and mlp",
        ),
    ],
)
def test_other_networks_are_left_to_torch(
    policy: str, shape: tuple[int, ...], factor: float, reason: str
) -> None:
    assert reason in str(unsuitable(policy, shape, (), factor))


@each_shape
def test_these_shapes_are_known(network: str, shape: Shape, factor: int) -> None:
    assert unsuitable(network, shape, (), factor) is None


@needs_kernels
@pytest.mark.multiprocess
def test_a_wider_network_on_larger_images_learns_the_same_with_every_number_of_workers(
    tmp_path: Path,
) -> None:
    arguments = ["--env", "benchmarks.peers.frames:Frames-v0", "--policy", "impala", "--num-envs", "4",
                 "--set", "training.width=2", "--set", "env.slice_envs=2", "--n-steps", "8", "--n-epochs", "1",
                 "--batch-size", "16", "--total-timesteps", "64", "--seed", "7"]  # fmt: skip
    hashes = set()
    for count in ("1", "2"):
        directory = tmp_path / count
        run = command("train_parallel_timed.py", *arguments, "--num-workers", count, directory=directory)
        assert run.code == 0, run.err
        assert "kernels: native" in (directory / "config.yaml").read_text()
        hashes.add(run.summary["policy_sha256"])
    assert len(hashes) == 1
