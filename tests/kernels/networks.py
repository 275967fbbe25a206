"""The networks that the kernels know, in plain torch, and cases to compare them on."""

import pytest
import torch
from torch.nn import functional

from parallel_ppo.kernels.build import VARIANTS
from parallel_ppo.kernels.native import IMPALA_WIDTHS, NativeTrunk, available, parameter_shapes

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
needs_kernels = pytest.mark.skipif(not USABLE, reason=f"no kernels here: {available()[1]}")
Case = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread():  # type: ignore[no-untyped-def]
    """As in a worker; and threads that wait for each other crawl on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_trunk(network: str, observation: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
    """The formulation everyone writes, in the parameters' own precision."""
    x = observation.permute(0, 3, 1, 2).to(parameters[0].dtype) / 255
    remaining = iter(parameters)

    def convolution(x: torch.Tensor, stride: int = 1, padding: int = 1) -> torch.Tensor:
        return functional.conv2d(x, next(remaining), next(remaining), stride, padding)

    if network == "nature":
        for stride in (4, 2, 1):
            x = torch.relu(convolution(x, stride, padding=0))
        flat = x.permute(0, 2, 3, 1).flatten(1)
    else:
        for _ in range(3):
            x = functional.max_pool2d(convolution(x), kernel_size=3, stride=2, padding=1)
            for _ in range(2):
                x = x + convolution(torch.relu(convolution(torch.relu(x))))
        x = torch.relu(x)
        flat = x.mean((2, 3)) if network == "impoola" else x.flatten(1)
    return torch.relu(functional.linear(flat, next(remaining), next(remaining)))


def make_case(
    network: str,
    num_samples: int,
    channels: int = 3,
    seed: int = 0,
    side: int = 64,
    factor: int = 1,
    distinct: int = 8,
) -> Case:
    """(observation, parameters, gradient of the features); weights on the scale of torch's default.

    At most `distinct` different images: with more, some sum lies within rounding of zero or of its neighbour, a
    ReLU or a max-pool falls on the other side, and the gradients of any two float formulations differ by
    a step (torch's own by 1e-3 from its double).
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        0, 256, (min(num_samples, distinct), side, side, channels), dtype=torch.uint8, generator=generator
    )
    observation = images.repeat(num_samples // distinct + 1, 1, 1, 1)[:num_samples].contiguous()
    parameters = []
    for shape in parameter_shapes(network, channels, side, factor):
        fan_in = torch.Size(shape[1:]).numel() if len(shape) > 1 else 100
        parameters.append((torch.rand(shape, generator=generator) * 2 - 1) / fan_in**0.5)
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
    _, side, _, channels = case[0].shape
    factor = 1 if network == "nature" else len(case[1][0]) // IMPALA_WIDTHS[0]
    return run_native(NativeTrunk(network, channels, variant, side, factor), case)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def all_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
