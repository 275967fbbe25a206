import math

import numpy as np
import pytest
import torch

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.policies.parameters import ALIGNMENT, bind, initialize, num_flat, sha256, views
from parallel_ppo.policies.policy import Policy, Preparation
from parallel_ppo.policies.trunks import SmallImage
from parallel_ppo.settings.kinds import automatic
from parallel_ppo.training.planning import resolve_kernels, resolve_policy
from tests.conftest import small_settings

IMAGE = EnvSpec((64, 64, 3), "uint8", ActionSpec("categorical", (15,)), 0)
VECTOR = EnvSpec((4,), "float32", ActionSpec("categorical", (2,)), 0)
GRID = EnvSpec((7, 7, 3), "uint8", ActionSpec("categorical", (7,)), 0)
SPECS = {"impala": IMAGE, "impoola": IMAGE, "nature": IMAGE, "small_image": GRID, "mlp": VECTOR}


def build(kind: str, seed: int = 1) -> tuple[Policy, torch.Tensor]:
    env = "coinrun" if kind != "mlp" else "CartPole-v1"
    policy = Policy(small_settings(env, kind), SPECS[kind])
    flat = torch.full((num_flat(policy),), 7.0)
    bind(policy, flat)
    initialize(policy, flat, seed)
    return policy, flat


def prepare(kind: str) -> Preparation:
    env = "coinrun" if kind != "mlp" else "CartPole-v1"
    return Preparation(small_settings(env, kind), SPECS[kind], torch.zeros(()), torch.ones(()))


@pytest.mark.parametrize("kind", SPECS)
def test_parameters_live_in_the_flat_vector(kind: str) -> None:
    policy, flat = build(kind)
    names = list(views(policy, flat))
    assert names == [name for name, _ in policy.named_parameters()]
    for parameter in policy.parameters():
        offset = (parameter.data_ptr() - flat.data_ptr()) // 4
        assert 0 <= offset < len(flat)
        assert offset % ALIGNMENT == 0
    flat.zero_()
    assert all(float(parameter.detach().abs().sum()) == 0 for parameter in policy.parameters())


def test_impala_has_the_published_size() -> None:
    policy, _ = build("impala")
    assert sum(parameter.numel() for parameter in policy.parameters()) == 626_256


def test_impoola_reads_means_of_channels() -> None:
    policy, _ = build("impoola")
    assert sum(parameter.numel() for parameter in policy.parameters()) == 626_256 - (2048 - 32) * 256
    images = torch.rand(2, 3, 64, 64)
    channels = policy.trunk.blocks(images).clamp(min=0).flatten(2).sum(2) / 64
    torch.testing.assert_close(policy.trunk(images), policy.trunk.project(channels).clamp(min=0))


@pytest.mark.parametrize("kind", ["impala", "impoola"])
def test_a_width_scales_the_channels(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = resolve_policy(small_settings("coinrun", kind, training__width=1.5), IMAGE)
    trunk = Policy(settings, IMAGE).trunk
    assert [block.entry.out_channels for block in trunk.blocks] == [24, 48, 48]
    assert trunk(torch.rand(2, 3, 64, 64)).shape == (2, 256)
    assert resolve_kernels(settings, IMAGE).training.kernels == "torch"
    assert "about 3 times as fast: the width is 1.5" in capsys.readouterr().err
    wider = resolve_kernels(settings.changed("training", width=2.0), IMAGE)
    assert wider.training.kernels == ("torch" if unusable(kind, IMAGE.observation_shape) else "native")


def test_mlps_are_drawn_as_the_settings_say() -> None:
    gaussian = ActionSpec("gaussian", (2,))
    settings = small_settings(
        "Pendulum-v1", "mlp", training__initialization="fan_in", training__initial_log_std=-2.0
    )
    policy = Policy(settings, EnvSpec((400,), "float32", gaussian, 0))
    flat = torch.zeros(num_flat(policy))
    initialize(policy, flat, 1)
    named = views(policy, flat)
    assert (named.pop("log_std") == -2).all()
    for name, view in named.items():
        limit = 1 / math.sqrt(policy.get_parameter(name.replace("bias", "weight")).shape[1])
        assert 0.3 * limit < view.abs().max() <= limit, name
    assert named["trunk.layers.0.weight"].abs().max() > 0.99 / 20


def test_settings_of_mlps_are_refused_elsewhere() -> None:
    with pytest.raises(InputError, match=r"training.activation: is for MLPs, the network is impala"):
        resolve_policy(small_settings("coinrun", "auto", training__activation="relu"), IMAGE)
    with pytest.raises(InputError, match=r"training.initial_log_std: is for continuous actions"):
        resolve_policy(small_settings("CartPole-v1", "mlp", training__initial_log_std=-1.0), VECTOR)


def test_a_width_is_refused_where_nothing_is_scaled() -> None:
    with pytest.raises(InputError, match=r"training.width: is for impala and impoola, the network is nature"):
        resolve_policy(small_settings("coinrun", "nature", training__width=2.0), IMAGE)
    settings = small_settings("coinrun", "impoola", training__width=2.5, training__kernels="native")
    with pytest.raises(InputError, match=r"training.kernels: native cannot be used here .*width is 2.5"):
        resolve_kernels(settings, IMAGE)


@pytest.mark.parametrize("kind", SPECS)
def test_initial_weights_depend_on_the_seed_alone(kind: str) -> None:
    (policy, flat), (_, again), (_, other) = build(kind), build(kind), build(kind, seed=2)
    assert sha256(policy, flat) == sha256(policy, again) != sha256(policy, other)


def test_heads_are_orthogonal_with_their_gains() -> None:
    policy, _ = build("nature")
    weight = policy.action_head.weight.detach().numpy()
    np.testing.assert_allclose(weight @ weight.T, np.eye(15) * 1e-4, atol=1e-9)
    assert math.isclose(float(policy.value_head.weight.detach().norm()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("kind", SPECS)
def test_forward_shapes_and_near_uniform_start(kind: str) -> None:
    policy, _ = build(kind)
    images = torch.randint(0, 256, (8, *SPECS[kind].observation_shape), dtype=torch.uint8)
    rows = torch.randn(8, 4) if kind == "mlp" else images
    output = policy(prepare(kind)(rows))
    assert output.action.shape == (8, SPECS[kind].action.sizes[0])
    assert output.value.shape == (8,)
    assert float(output.action.detach().abs().max()) < 0.2


def test_images_are_channels_last_without_a_copy_of_order() -> None:
    rows = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    prepared = prepare("impala")(rows)
    assert prepared.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(prepared[3, 2, 10, 20], rows[3, 10, 20, 2].float() / 255)


def test_the_nature_cnn_gives_the_same_with_packed_weights() -> None:
    policy, flat = build("nature")
    images = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    observation = prepare("nature")(images)
    for seed in (1, 2):
        initialize(policy, flat, seed)
        policy.forget_layouts()
        plain = policy(observation)
        with torch.inference_mode():
            packed = policy(observation)
        torch.testing.assert_close(packed.action, plain.action.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(packed.value, plain.value.detach(), rtol=1e-4, atol=1e-6)
    assert policy.trunk.packed, "the packed weights were not used"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([], "mlp"),
        ([(5, 5, 3)], "small_image"),
        ([(32, 32, 1), (7, 9, 3)], "small_image"),
        ([(7, 7, 3), (33, 8, 3)], "impala"),
        ([(64, 64, 3)], "impala"),
    ],
)
def test_auto_is_chosen_by_the_size_of_images(images: list[tuple[int, ...]], expected: str) -> None:
    assert automatic(images) == expected


@pytest.mark.parametrize("size", [(1, 1), (5, 5), (7, 9), (32, 32)])
def test_small_images_of_every_size_are_read(size: tuple[int, int]) -> None:
    trunk = SmallImage(*size, 3)
    assert trunk(torch.rand(2, 3, *size)).shape == (2, trunk.num_features)


def test_small_integers_are_kinds_and_all_values_brightness() -> None:
    """Small integers count as categories and brightness, larger ones as brightness only."""
    trunk = SmallImage(1, 1, 1)
    with torch.no_grad():
        trunk.kinds.bias.zero_()
        trunk.brightness.weight.fill_(2.0)
        seen: list[torch.Tensor] = []
        trunk.convolutions = torch.nn.ModuleList([torch.nn.Identity()])
        trunk.convolutions[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1)))
        values = torch.arange(256.0)
        trunk(values.mul(1 / 255).view(-1, 1, 1, 1))
        expected = 2 * values[:, None] / 255 + torch.nn.functional.pad(trunk.kinds.weight.t(), (0, 0, 0, 240))
    torch.testing.assert_close(seen[0], expected.relu())
