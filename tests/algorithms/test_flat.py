"""Sums of microbatches and Adam on flat vectors, by our kernels and by torch."""

import pytest
import torch

from parallel_ppo.algorithms import minibatches, optimizers
from parallel_ppo.kernels.api import available
from parallel_ppo.settings.schema import Settings

KERNELS = ["torch", *(["native"] if available()[0] else [])]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 11, 16, 23])
def test_microbatches_are_summed_in_the_one_order(kernels: str, count: int) -> None:
    everything = torch.randn(count, 2000, generator=torch.Generator().manual_seed(count))
    microbatches = everything[
        :, 16:1008
    ]  # a block is a part of each microbatch, and not a whole number of chunks
    into = torch.full((992,), float("nan"))
    squares = optimizers.sum_microbatches(microbatches, into, kernels)
    assert torch.equal(into, minibatches.tree_sum(list(microbatches)))
    assert squares == pytest.approx(float(into.double().square().sum()), rel=1e-12)
    assert optimizers.sum_microbatches(into.unsqueeze(0), into, kernels) == squares, (
        "the squares of a sum that is there"
    )


@pytest.mark.skipif(not available()[0], reason="native kernels do not run here")
def test_our_adam_equals_torchs() -> None:
    draws = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(100_000, generator=draws), torch.randn(100_000, generator=draws)
    ends = []
    for kernels in KERNELS:
        parameters, moments = start.clone(), [torch.zeros(100_000), torch.zeros(100_000)]
        training = Settings().changed("training", kernels=kernels).training
        for number in range(1, 6):
            optimizers.step(
                training, parameters=parameters, gradient=gradient, first_moment=moments[0],
                second_moment=moments[1], number=number, learning_rate=1e-3, gradient_scale=0.5,
            )  # fmt: skip
        ends.append(parameters)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_a_nan_gradient_shows_in_the_squares() -> None:
    for kernels in KERNELS:
        microbatches = torch.zeros(3, 64)
        microbatches[1, 5] = float("nan")
        squares = optimizers.sum_microbatches(microbatches, torch.empty(64), kernels)
        assert squares != squares
