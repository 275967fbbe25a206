"""Linear layers on our own kernels against torch's."""

import pytest
import torch
from torch.nn import functional

from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.native import NativeLinear

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("num_samples", "num_inputs", "num_outputs"), [(64, 512, 512), (5, 64, 128), (200, 128, 64), (7, 3, 20)]
)
def test_outputs_and_gradients_are_those_of_torch(
    num_samples: int, num_inputs: int, num_outputs: int, relu: bool
) -> None:
    torch.manual_seed(1)
    layer = NativeLinear(num_inputs, num_outputs, relu=relu)
    x = torch.randn(num_samples, num_inputs, requires_grad=True)
    slope = torch.randn(num_samples, num_outputs)
    plain = functional.linear(x, layer.weight, layer.bias)
    plain = plain.relu() if relu else plain
    found = []
    for out in (layer(x), plain):
        gradients = torch.autograd.grad(out, [x, layer.weight, layer.bias], slope)
        found.append([out.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        assert torch.equal(layer(x), found[0][0])


def test_a_sample_does_not_depend_on_the_others_of_its_batch() -> None:
    layer, x = NativeLinear(64, 64, relu=True), torch.randn(20, 64)
    with torch.no_grad():
        assert torch.equal(layer(x)[3], layer(x[3:4])[0])
