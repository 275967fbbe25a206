"""The flat gradient is the sum of its microbatches: of the policy all, of curiosity's predictors those that teach."""

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms.minibatches import tree_sum
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.memory.arrays import BLOCK
from parallel_ppo.workers.gradient_parts import sum_blocks, write_squares
from parallel_ppo.workers.memory import Memory
from tests.conftest import small_settings

SPEC = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)), 0)


@pytest.mark.parametrize("kind", ["none", "rnd"])
def test_each_part_is_summed_over_its_own_microbatches(kind: str) -> None:
    settings = small_settings(
        env__num_envs=8, env__slice_envs=2, training__batch_size=64, training__lane_samples=4,
        training__kernels="torch", curiosity__kind=kind, curiosity__update_share=0.4,
    )  # fmt: skip
    sizes, memory = settings.sizes, Memory(settings, SPEC, BLOCK + 32)
    assert sizes.num_microbatches == 16 and sizes.predictor_microbatches == (2 if kind == "rnd" else 0)
    draws, end = np.random.default_rng(1), memory.policy_end
    for microbatches in (memory.microbatch_gradient, memory.predictor_gradient):
        microbatches[...] = draws.normal(size=microbatches.shape)
    blocks = range(len(memory.gradient_squares))
    for slices in (range(4), range(1, 3)):
        sum_blocks(memory, settings, blocks, range(slices.start * 4, slices.stop * 4))
        expected = tree_sum(list(memory.tensor("microbatch_gradient")[slices.start * 4 : slices.stop * 4]))
        assert torch.equal(memory.tensor("gradient")[:end], expected)
        if kind == "rnd":
            predictors = memory.tensor("predictor_gradient")[slices.start * 2 : slices.stop * 2]
            assert torch.equal(memory.tensor("gradient")[end:], tree_sum(list(predictors)))
        squares = memory.gradient_squares.copy()
        assert np.isclose(squares.sum(), np.square(memory.gradient.astype(np.float64)).sum())
        write_squares(memory, settings)
        assert np.array_equal(memory.gradient_squares, squares)
