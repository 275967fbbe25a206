"""Cases to compare the networks that the kernels know with their plain formulation on."""

import pytest
import torch

from benchmarks.plain_trunks import draw_parameters, plain_trunk
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.build import VARIANTS
from parallel_ppo.kernels.choice import NETWORKS
from parallel_ppo.kernels.native import IMPALA_WIDTHS, NativeTrunk, parameter_shapes

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
needs_kernels = pytest.mark.skipif(not USABLE, reason=f"no kernels here: {available()[1]}")
Case = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]
Shape = tuple[int, ...]


def usual_shape(network: str, channels: int = 3) -> Shape:
    return (NETWORKS[network].usual_side,) * 2 + (channels,)


def make_case(
    network: str,
    num_samples: int,
    shape: Shape | None = None,
    seed: int = 0,
    factor: int = 1,
    distinct: int = 8,
) -> Case:
    """(observation, parameters, gradient of the features); weights on the scale of torch's default.

    At most `distinct` different images: with more, some sum lies within rounding of zero or of its neighbour, a
    ReLU or a max-pool falls on the other side, and the gradients of any two float formulations differ by
    a step (torch's own by 1e-3 from its double).
    """
    generator, shape = torch.Generator().manual_seed(seed), shape or usual_shape(network)
    images = torch.randint(
        0, 256, (min(num_samples, distinct), *shape), dtype=torch.uint8, generator=generator
    )
    if network == "small_image":
        images[::2] %= 20  # mostly kinds of things
    observation = images.repeat(num_samples // distinct + 1, 1, 1, 1)[:num_samples].contiguous()
    parameters = draw_parameters(parameter_shapes(network, shape, factor), generator)
    return observation, parameters, torch.randn(num_samples, len(parameters[-1]), generator=generator)


def plain_result(network: str, case: Case) -> list[torch.Tensor]:
    """[features, *gradients] in double precision."""
    observation, parameters, gradient = case
    exact = [parameter.double().requires_grad_() for parameter in parameters]
    features = plain_trunk(network, observation, exact)
    return [features.detach(), *torch.autograd.grad(features, exact, gradient.double())]


def run_native(native: NativeTrunk, case: Case) -> list[torch.Tensor]:
    """[features, *gradients]"""
    observation, parameters, gradient = case
    native.load(parameters, training=True)
    features, activations = native.forward(observation)
    gradients = [torch.full_like(parameter, float("nan")) for parameter in parameters]
    native.backward(observation, features, activations, gradient, gradients)
    return [features, *gradients]


def native_result(network: str, case: Case, variant: str | None = None) -> list[torch.Tensor]:
    factor = len(case[1][0]) // IMPALA_WIDTHS[0] if network in ("impala", "impoola") else 1
    return run_native(NativeTrunk(network, tuple(case[0].shape[1:]), variant, factor), case)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def all_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
