"""Other images than Procgen's and wider networks: which of them the kernels know, and that they are right."""

from pathlib import Path

import pytest
import torch

from parallel_ppo.kernels.choice import unsuitable
from parallel_ppo.kernels.native import NativeTrunk
from tests.conftest import command
from tests.kernels.networks import (
    USABLE,
    all_equal,
    make_case,
    native_result,
    needs_kernels,
    one_thread,  # noqa: F401
    plain_result,
    plain_trunk,
    relative_error,
    run_native,
)

SHAPES = [  # network, side, channels, factor
    ("impala", 84, 3, 1),
    ("impala", 96, 1, 1),
    ("impala", 65, 3, 1),
    ("impala", 66, 2, 3),
    ("impala", 64, 3, 2),
    ("impala", 83, 4, 2),
    ("impoola", 90, 4, 3),
    ("impoola", 64, 12, 4),
    ("nature", 84, 4, 1),
    ("nature", 84, 12, 1),
]
each_shape = pytest.mark.parametrize(("network", "side", "channels", "factor"), SHAPES)


@needs_kernels
@each_shape
@pytest.mark.parametrize("num_samples", [2, 18])
def test_every_variant_gives_the_bits_of_the_others_and_the_plain_result(
    network: str, side: int, channels: int, factor: int, num_samples: int
) -> None:
    case = make_case(network, num_samples, channels, 0, side, factor, distinct=2)
    results = [native_result(network, case, variant) for variant in USABLE]
    assert all(all_equal(result, results[0]) for result in results)
    for place, (result, truth) in enumerate(zip(results[0], plain_result(network, case), strict=True)):
        assert relative_error(result, truth) < 3e-5, place


@needs_kernels
@pytest.mark.parametrize(("side", "factor"), [(84, 1), (64, 3)])
def test_the_error_is_of_the_size_of_torch_own(side: int, factor: int) -> None:
    case = make_case("impala", 6, side=side, factor=factor, distinct=2)
    observation, parameters, gradient = case
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    features = plain_trunk("impala", observation, leaves)
    theirs = [features.detach(), *torch.autograd.grad(features, leaves, gradient)]
    ours, truths = native_result("impala", case), plain_result("impala", case)
    for our, their, truth in zip(ours, theirs, truths, strict=True):
        assert relative_error(our, truth) < 10 * relative_error(their, truth) + 1e-6


@needs_kernels
@each_shape
def test_same_bits_after_other_sizes_and_after_a_nan(
    network: str, side: int, channels: int, factor: int
) -> None:
    """Nothing is left outside the image, where it would be taken for the image's border."""
    cases = [make_case(network, size, channels, 3, side, factor) for size in (9, 2, 20)]
    native = NativeTrunk(network, channels, None, side, factor)
    first = run_native(native, cases[0])
    for other in cases[1:]:
        run_native(native, other)
        assert all_equal(first, run_native(native, cases[0]))
    observation, parameters, gradient = cases[0]
    broken = [parameters[0] * float("nan"), *parameters[1:]]
    assert run_native(native, (observation, broken, gradient))[0].isnan().any()
    assert all_equal(first, run_native(native, cases[0]))


@needs_kernels
@each_shape
def test_inference_gives_the_bits_of_training_and_ignores_the_rest_of_the_batch(
    network: str, side: int, channels: int, factor: int
) -> None:
    observation, parameters, _ = make_case(network, 20, channels, 0, side, factor)
    native = NativeTrunk(network, channels, None, side, factor)
    native.load(parameters, training=True)
    trained, _ = native.forward(observation)
    assert torch.equal(native.features(observation), trained)
    assert torch.equal(native.features(observation[5:13].contiguous()), trained[5:13])


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
        (
            "small_image",
            (7, 7, 3),
            1,
            "the network is small_image, the kernels know impala, impoola, nature and mlp",
        ),
    ],
)
def test_other_networks_are_left_to_torch(
    policy: str, shape: tuple[int, ...], factor: float, reason: str
) -> None:
    assert reason in str(unsuitable(policy, shape, (), factor))


@each_shape
def test_these_shapes_are_known(network: str, side: int, channels: int, factor: int) -> None:
    assert unsuitable(network, (side, side, channels), (), factor) is None


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
        assert run.code == 0 and "impala on our kernels" in run.out, run.err
        hashes.add(run.summary["policy_sha256"])
    assert len(hashes) == 1
