"""Recurrent policies: the cell beside torch's own, our kernels beside autograd, and the order of sequences.

T steps, B sequences, S numbers of state.
"""

import itertools

import numpy as np
import pytest
import torch

from parallel_ppo.algorithms.minibatches import rollout_rows
from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.policies.actor import Actor
from parallel_ppo.policies.autograd import AutogradNetwork
from parallel_ppo.policies.cells import Cell
from parallel_ppo.policies.native_recurrent import NativeRecurrent
from parallel_ppo.policies.network import OutputGradient, Past, Sequences
from parallel_ppo.policies.parameters import bind, initialize, num_flat
from parallel_ppo.policies.policy import Policy, Preparation
from parallel_ppo.settings.schema import Settings
from tests.conftest import small_settings

T, B, SIZE = 6, 5, 16
VECTOR = EnvSpec((4,), "float32", ActionSpec("gaussian", (2,)), 0)
GRID = EnvSpec((7, 7, 3), "uint8", ActionSpec("categorical", (7,)), 0)
native = pytest.mark.skipif(unusable("mlp", (4,), [64]) is not None, reason="native kernels do not run here")


def starts(share: float = 0.3) -> torch.Tensor:
    return torch.from_numpy((np.random.default_rng(2).random((T, B)) < share).astype(np.uint8))


def floats(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_cell_is_torchs_between_the_starts_of_episodes(kind: str) -> None:
    """Values and gradients; torch's own sees each episode's part of a sequence alone."""
    torch.manual_seed(1)
    theirs = (torch.nn.GRU if kind == "gru" else torch.nn.LSTM)(3, SIZE)
    cell = Cell(kind, 3, SIZE)
    for parameter, value in zip(cell.parameters(), theirs.parameters(), strict=True):
        parameter.data.copy_(value.data)
    features, begins, state = floats(T * B, 3), starts(), floats(B, cell.num_states, seed=4)
    weight, found_state = floats(T * B, SIZE, seed=5), None
    output, found_state = cell(features, state, begins)
    expected, by_step = torch.zeros(T, B, SIZE), features.view(T, B, 3)
    for b in range(B):
        cuts = sorted({0, T, *begins[:, b].nonzero().flatten().tolist()})
        for first, end in itertools.pairwise(cuts):
            before = state[b : b + 1] * (0.0 if begins[first, b] else 1.0)
            given = before.view(1, 1, -1) if kind == "gru" else before.view(2, 1, 1, SIZE).unbind()
            expected[first:end, b], last = _run(theirs, by_step[first:end, b : b + 1], given)
        torch.testing.assert_close(found_state[b], last, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output, expected.reshape(T * B, SIZE), rtol=1e-5, atol=1e-6)
    ours = torch.autograd.grad((output * weight).sum(), list(cell.parameters()))
    other = torch.autograd.grad((expected.reshape(output.shape) * weight).sum(), list(theirs.parameters()))
    for one, two in zip(ours, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def _run(cell: torch.nn.Module, rows: torch.Tensor, given: object) -> tuple[torch.Tensor, torch.Tensor]:
    output, last = cell(rows, tuple(given) if isinstance(given, tuple) else given)
    return output[:, 0], torch.cat([part.flatten() for part in last]) if isinstance(
        last, tuple
    ) else last.flatten()


def made(kind: str, spec: EnvSpec, separate: bool, kernels: str) -> tuple[Settings, Policy, torch.Tensor]:
    name = "mlp" if spec is VECTOR else "small_image"
    settings = small_settings("CartPole-v1" if spec is VECTOR else "coinrun", name, recurrence__kind=kind)
    settings = settings.changed("recurrence", size=SIZE, separate_value=separate)
    settings = settings.changed("training", kernels=kernels, hidden_sizes=[32, 16])
    policy = Policy(settings, spec)
    flat = torch.zeros(num_flat(policy))
    bind(policy, flat)
    initialize(policy, flat, 1)
    flat += 0.1 * floats(len(flat), seed=6)
    return settings, policy, flat


def observed(spec: EnvSpec, rows: int) -> torch.Tensor:
    if spec is VECTOR:
        return floats(rows, 4, seed=7)
    return torch.from_numpy(np.random.default_rng(7).integers(0, 12, (rows, 7, 7, 3)).astype(np.uint8))


@native
@pytest.mark.parametrize("copies", [1, 2], ids=["plain", "drac"])
@pytest.mark.parametrize("separate", [False, True], ids=["one cell", "two cells"])
@pytest.mark.parametrize("spec", [VECTOR, GRID], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_our_kernels_compute_what_autograd_does(
    kind: str, spec: EnvSpec, separate: bool, copies: int
) -> None:
    settings, policy, flat = made(kind, spec, separate, "native")
    rows, state = observed(spec, copies * T * B), floats(B, settings.recurrence.state_size, seed=8)
    prepared = Preparation(settings, spec, torch.zeros(()), torch.ones(()))(rows)
    slopes = OutputGradient(
        floats(copies * T * B, policy.action_head.out_features, seed=9),
        None if policy.log_std is None else floats(2, seed=10),
        floats(copies * T * B, 1, seed=11),
    )
    found, outputs = [], []
    for network, observation in (
        (NativeRecurrent(settings, policy, flat), rows if spec is GRID else prepared),
        (AutogradNetwork(policy), prepared),
    ):
        network.begin_step((0, 0))
        gradient = torch.zeros_like(flat)
        outputs.append(network.forward(Sequences(observation, state, starts())))
        network.backward(slopes, network.gradient_views(gradient))
        found.append(gradient)
    torch.testing.assert_close(outputs[0].action, outputs[1].action.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[0].values, outputs[1].values.detach(), rtol=1e-4, atol=1e-5)
    scale = float(found[1].abs().max())
    assert scale > 0.1 and float((found[0] - found[1]).abs().max()) < 2e-5 * scale


@native
@pytest.mark.parametrize("spec", [VECTOR, GRID], ids=["vectors", "images"])
def test_acting_is_the_sequence_bit_for_bit(spec: EnvSpec) -> None:
    settings, _, flat = made("lstm", spec, True, "native")
    actor = Actor(settings, spec, flat, torch.zeros(()), torch.ones(()))
    actor.refresh()
    rows, begins = observed(spec, T * B).numpy(), starts().numpy()
    past = Past(floats(B, settings.recurrence.state_size, seed=8).numpy(), begins)
    state = past.state.copy()
    whole = actor.infer(rows, past)
    noise = actor.draw_noise(np.random.default_rng(1), T, B)
    for t in range(T):
        own = slice(t * B, (t + 1) * B)
        before, one = state.copy(), Past(state, begins[t : t + 1])
        values = actor.values(rows[own], one)
        assert np.array_equal(state, before), "looking at the values changes nothing"
        acted = actor.act(rows[own], noise[t], past=one)
        assert np.array_equal(values, whole.values[own].numpy())
        assert np.array_equal(acted.values, values)
    assert np.array_equal(state, past.state)


def test_a_microbatch_holds_whole_sequences() -> None:
    rows = rollout_rows(np.array([5, 0, 3]), slice_index=1, slice_envs=2, num_envs=6, length=4)
    steps, envs = np.divmod(rows.reshape(3, 4), 6)
    assert steps.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert envs.tolist() == [[3] * 4, [2] * 4, [3] * 4]
