"""Recurrent cells on our kernels against torch's in float64, and themselves in pieces and with every instruction set."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.build import VARIANTS
from parallel_ppo.kernels.native_cell import GATES, NativeCell

USABLE = [variant for variant in VARIANTS if available(variant)[0]]
pytestmark = pytest.mark.skipif(not USABLE, reason="our kernels do not run here")

each_kind = pytest.mark.parametrize("kind", ["gru", "lstm"])
SIZES = [  # I, H, T, B
    (1, 1, 1, 1),
    (3, 7, 5, 3),
    (64, 64, 4, 8),
    (20, 33, 6, 27),
    (200, 128, 16, 12),
    (130, 256, 3, 5),
]


class Case(NamedTuple):
    weights: list[Tensor]
    features: Tensor  # [T, B, I]
    state: Tensor  # [B, S]
    starts: Tensor  # [T, B]
    d_output: Tensor  # [T, B, H]


def make_case(kind: str, sizes: tuple[int, int, int, int]) -> Case:
    num_inputs, size, num_steps, num_samples = sizes
    draws = torch.Generator().manual_seed(1)
    rows = GATES[kind] * size
    shapes = [(rows, num_inputs), (rows, size), (rows,), (rows,)]
    return Case(
        [torch.randn(shape, generator=draws) / size**0.5 for shape in shapes],
        torch.randn(num_steps, num_samples, num_inputs, generator=draws),
        torch.randn(num_samples, (1 if kind == "gru" else 2) * size, generator=draws),
        torch.rand(num_steps, num_samples, generator=draws) < 0.2,
        torch.randn(num_steps, num_samples, size, generator=draws),
    )


class Cell:
    """The native one, with a case's shapes."""

    def __init__(self, kind: str, case: Case) -> None:
        self.native = NativeCell(kind, case.features.shape[2], case.d_output.shape[2], case.weights)
        self.native.load()

    def forward(self, features: Tensor, state: Tensor, starts: Tensor, keep: bool = False) -> Any:
        features, starts = features.contiguous(), starts.contiguous()
        output, final = self.native.forward(features.flatten(0, 1), state, starts, keep=keep)
        return output.view(*starts.shape, -1), final

    def backward(self, d_output: Tensor) -> list[Tensor]:
        gradients = [torch.full_like(weight, torch.nan) for weight in self.native.parameters]
        by_features = self.native.backward(d_output.flatten(0, 1), gradients)
        return [by_features.view(*d_output.shape[:2], -1), *gradients]


def native_result(kind: str, case: Case) -> list[Tensor]:
    """Output, final state, and the derivatives in the features and weights."""
    cell = Cell(kind, case)
    forward = cell.forward(case.features, case.state, case.starts, keep=True)
    return [*forward, *cell.backward(case.d_output)]


def torch_result(kind: str, case: Case) -> list[Tensor]:
    """Step by step, by torch's own module and autograd, in float64."""
    num_inputs, size = case.features.shape[2], case.d_output.shape[2]
    cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(num_inputs, size).double()
    weights = list(cell.parameters())
    with torch.no_grad():
        for weight, values in zip(weights, case.weights, strict=True):
            weight.copy_(values)
    features, state, outputs = case.features.double().requires_grad_(), case.state.double(), []
    for x, starts in zip(features, case.starts, strict=True):
        state = state.masked_fill(starts[:, None], 0)
        state = cell(x, state) if kind == "gru" else torch.cat(cell(x, (state[:, :size], state[:, size:])), 1)
        outputs.append(state[:, :size])
    output = torch.stack(outputs)
    gradients = torch.autograd.grad(output, [features, *weights], case.d_output.double())
    return [output.detach(), state.detach(), *gradients]


@each_kind
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_outputs_and_gradients_are_those_of_torch(kind: str, sizes: tuple[int, int, int, int]) -> None:
    case = make_case(kind, sizes)
    for ours, theirs in zip(native_result(kind, case), torch_result(kind, case), strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@each_kind
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_samples_and_steps_alone_give_the_bits_of_all(kind: str, sizes: tuple[int, int, int, int]) -> None:
    case = make_case(kind, sizes)
    cell, later = Cell(kind, case), sizes[2] // 2
    output, final = cell.forward(case.features, case.state, case.starts)
    for sample in {0, len(final) - 1}:
        one, state = slice(sample, sample + 1), case.state[sample : sample + 1]
        for step in range(len(output)):
            now = slice(step, step + 1)
            found, state = cell.forward(case.features[now, one], state, case.starts[now, one])
            assert torch.equal(found, output[now, one])
        assert torch.equal(state, final[one])
    found, state = case.d_output[:0], case.state
    for part in (slice(later), slice(later, None)):
        if len(output[part]):
            more, state = cell.forward(case.features[part], state, case.starts[part])
            found = torch.cat([found, more])
    assert torch.equal(found, output) and torch.equal(state, final)


@each_kind
def test_nothing_passes_the_start_of_an_episode(kind: str) -> None:
    case = make_case(kind, (5, 16, 6, 3))
    starts = torch.zeros(6, 3, dtype=torch.uint8)
    starts[0] = starts[3, 1] = 1
    case.state[:] = torch.nan
    features, d_output = case.features.clone(), case.d_output.clone()
    features[:3, 1] = torch.nan  # the episode before
    d_output[:3] = 0
    cell = Cell(kind, case)
    output, _ = cell.forward(features, case.state, starts)
    assert torch.isfinite(output[:, 0]).all() and torch.isfinite(output[3:, 1]).all()
    cell.forward(case.features, case.state, starts, keep=True)
    by_features = cell.backward(d_output)[0]
    assert not by_features[:3, 1].any() and by_features[:3, 0].any() and by_features[3:, 1].any()


@each_kind
def test_acting_leaves_what_the_backward_pass_needs(kind: str) -> None:
    case = make_case(kind, (20, 33, 6, 4))
    expected, cell = native_result(kind, case), Cell(kind, case)
    cell.forward(case.features, case.state, case.starts, keep=True)
    cell.forward(-case.features, case.state, ~case.starts)
    found = cell.backward(case.d_output)
    assert all(torch.equal(a, b) for a, b in zip(found, expected[2:], strict=True))
    with pytest.raises(AssertionError, match="forward comes first"):
        cell.backward(case.d_output)


@each_kind
@pytest.mark.skipif(len(USABLE) < 2, reason="one instruction set only")
def test_every_instruction_set_gives_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes in SIZES:
        case, of_each = make_case(kind, sizes), []
        for variant in USABLE:
            monkeypatch.setenv("PARALLEL_PPO_KERNEL", variant)
            of_each.append(native_result(kind, case))
        assert all(torch.equal(a, b) for a, b in zip(*of_each, strict=True)), sizes
