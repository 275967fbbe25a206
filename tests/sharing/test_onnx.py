"""An exported policy does in onnxruntime what the policy does here. Run by `make test-extras`."""

from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_ppo.envs.contract import ActionSpec, EnvSpec, Part
from parallel_ppo.evaluation.policy_files import Weights, fill, make_actor
from parallel_ppo.policies.network import Past
from parallel_ppo.policies.parameters import initialize, num_flat, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings
from parallel_ppo.sharing.command import export as export_command
from parallel_ppo.sharing.onnx import Graph, export, rows_of, trial_inputs
from tests.conftest import small_settings
from tests.evaluation.weight_files import write_weights

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
INFINITE = float("inf")
VECTOR, IMAGE, PARTS = (5,), (64, 64, 3), (Part(False, (5,), 0), Part(True, (40, 40, 1), 64))
CATEGORICAL, SEVERAL = ActionSpec("categorical", (4,)), ActionSpec("categorical", (3, 2))
BOX = ActionSpec(
    "gaussian", (6,), (-2, 0, -INFINITE, 3, -INFINITE, -3e38), (2, 0.5, INFINITE, INFINITE, 5, 3e38)
)
CASES = {
    "mlp": ("mlp", EnvSpec(VECTOR, "float32", CATEGORICAL, 0)),
    "mlp-multidiscrete": ("mlp", EnvSpec(VECTOR, "float32", SEVERAL, 0)),
    "mlp-masked": ("mlp", EnvSpec(VECTOR, "float32", SEVERAL, 0, masks_actions=True)),
    "mlp-gaussian": ("mlp", EnvSpec(VECTOR, "float32", BOX, 0)),
    "mlp-bernoulli": ("mlp", EnvSpec(VECTOR, "float32", ActionSpec("bernoulli", (4,)), 0)),
    "nature": ("nature", EnvSpec(IMAGE, "uint8", CATEGORICAL, 0)),
    "impala": ("impala", EnvSpec(IMAGE, "uint8", CATEGORICAL, 0)),
    "impala-gaussian": ("impala", EnvSpec(IMAGE, "uint8", BOX, 0)),
    "small-image": ("small_image", EnvSpec((7, 7, 3), "uint8", CATEGORICAL, 0)),
    "mixed": ("nature", EnvSpec((64 + 1600,), "uint8", CATEGORICAL, 0, PARTS)),
}


def weights_for(settings: Settings, spec: EnvSpec) -> Weights:
    policy = Policy(settings, spec)
    flat = torch.zeros(num_flat(policy))
    initialize(policy, flat, 3)
    arrays = {name: view.numpy().copy() for name, view in views(policy, flat).items()}
    arrays["action_head.weight"] = arrays["action_head.weight"] * 100  # choices far apart
    if settings.training.normalize_observations:
        draws = np.random.default_rng(0)
        arrays["observations.count"] = np.array(100.0)
        arrays["observations.mean"] = draws.standard_normal(spec.vector_shape)
        arrays["observations.squares"] = 100 * draws.random(spec.vector_shape)
    return Weights(Path("policy.safetensors"), settings, spec, 256, arrays)


@pytest.mark.parametrize(
    ("name", "recurrent"),
    [*((name, "none") for name in CASES), ("mlp-masked", "gru"), ("mixed", "lstm"), ("mlp-gaussian", "lstm")],
)
def test_onnxruntime_computes_what_the_policy_does(name: str, recurrent: str, tmp_path: Path) -> None:
    policy, spec = CASES[name]
    settings = small_settings(
        "coinrun" if policy != "mlp" else "CartPole-v1", policy, training__kernels="torch"
    )
    settings = settings.changed("training", normalize_observations=bool(spec.vector_shape))
    settings = settings.changed("recurrence", kind=recurrent, size=16, separate_value=True)
    weights = weights_for(settings, spec)
    assert export(weights, tmp_path / "policy.onnx") <= 1e-5

    filled = fill(weights, settings, spec)
    graph, actor = Graph(settings, spec, filled), make_actor(settings, spec, filled)
    inputs = trial_inputs(graph, 33, seed=9)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [one.name for one in session.get_inputs()] == list(inputs)
    assert [one.name for one in session.get_outputs()] == graph.output_names
    found = dict(zip(graph.output_names, session.run(None, inputs), strict=True))
    mask, state = inputs.pop("action_mask", None), inputs.pop("state", None)
    actor.refresh()
    rows = rows_of(spec, list(inputs.values()))
    past = None if state is None else Past(state, np.zeros((1, 33), np.uint8))
    value = actor.value(rows, past)
    chosen = actor.most_likely(rows, mask, past)  # and the state after it
    if past is not None:
        np.testing.assert_allclose(found["next_state"], past.state, atol=1e-5, rtol=1e-5)
    if spec.action.kind == "gaussian":
        half, middle = np.array([2, 0.25, 1, 1, 1, 1]), np.array([0, 0.25, 0, 4, 4, 0])  # beside one bound: 2
        expected = np.clip(chosen * half + middle, spec.action.low, spec.action.high)
        np.testing.assert_allclose(found["action"], expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_array_equal(found["log_std"], weights.arrays["log_std"])
    else:
        assert found["action"].dtype == (np.int8 if spec.action.kind == "bernoulli" else np.int64)
        np.testing.assert_array_equal(found["action"].reshape(33, -1), chosen)
        assert found["action"].ndim == (
            1 if len(spec.action.sizes) == 1 and "categorical" in spec.action.kind else 2
        )
    np.testing.assert_allclose(found["value"], value, atol=1e-5, rtol=1e-5)
    assert len(np.unique(found["value"])) > 1  # observations matter


def test_the_command_writes_a_file_that_says_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    weights = write_weights(tmp_path / "policy.safetensors", small_settings())
    assert export_command([str(weights), "--output", str(tmp_path / "out" / "policy.onnx")]) == 0
    assert "within" in capsys.readouterr().out
    described = {item.key: item.value for item in onnx.load(tmp_path / "out" / "policy.onnx").metadata_props}
    assert described["env_id"] == "CartPole-v1" and len(described["policy_sha256"]) == 64
    assert export_command([str(weights), "--output", str(tmp_path / "policy.txt")]) == 2
    assert capsys.readouterr().err.startswith("error: --output ")
