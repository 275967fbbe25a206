"""A policy as one ONNX graph: normalization, network and the choice of the most likely action. B
observations.

Inputs: `observation`, or, where an observation mixes vectors and images, `vector` and `image_0`, ...;
`action_mask` where the environment has one; `state` of a recurrent policy, which is 0 where an episode starts.
Outputs: `action` as the environment takes it, `logits` (or `mean` and `log_std`), `value`, and the `next_state`.
"""

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.envs.spaces import box_scale
from parallel_ppo.evaluation.policy_files import Filled, Weights, fill, make_actor
from parallel_ppo.exits import InputError
from parallel_ppo.keyed import generator
from parallel_ppo.policies import heads
from parallel_ppo.policies.network import Past, Sequences
from parallel_ppo.policies.parameters import bind
from parallel_ppo.policies.policy import Policy, Preparation, scaled_image
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.files import write_atomically

OPSET = 17
TOLERANCE = 1e-5
TRIAL_ROWS = 5


def check_installed() -> None:
    for name in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f'export needs the package {name}: pip install "parallel_ppo[onnx]"')


class Graph(nn.Module):
    """The exported module."""

    def __init__(self, settings: Settings, spec: EnvSpec, filled: Filled) -> None:
        super().__init__()
        self.spec, self.policy = spec, Policy(settings, spec)
        self.state_size = settings.recurrence.state_size
        bind(self.policy, torch.from_numpy(filled.parameters))
        statistics = filled.observation_mean, filled.observation_scale
        self.prepare = Preparation(settings, spec, *map(torch.from_numpy, statistics))
        self.eval()

    @property
    def input_names(self) -> list[str]:
        names = ["observation"]
        if self.spec.parts:
            images = [f"image_{index}" for index in range(len(self.spec.image_shapes))]
            names = (["vector"] if self.spec.vector_shape else []) + images
        names += ["action_mask"] if self.spec.masks_actions else []
        return names + (["state"] if self.policy.cell is not None else [])

    @property
    def output_names(self) -> list[str]:
        is_gaussian = self.spec.action.kind == "gaussian"
        return [
            "action",
            *(["mean"] if is_gaussian else ["logits"]),
            "value",
            *(["log_std"] if is_gaussian else []),
            *(["next_state"] if self.policy.cell is not None else []),
        ]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.input_names, inputs, strict=True))
        state, mask = named.pop("state", None), named.pop("action_mask", None)
        parts = named.values()
        prepared = [scaled_image(part) if part.dim() == 4 else self.prepare.vector(part) for part in parts]
        with torch.enable_grad():  # without it, trunks may use kernels that have no name in ONNX
            observation = prepared if self.spec.parts else prepared[0]
            if state is None:
                output, after = self.policy(observation), []
            else:
                starts = torch.zeros_like(state[:, 0]).unsqueeze(0)
                output, next_state = self.policy.unrolled(Sequences(observation, state, starts))
                after = [next_state]
        output = heads.masked(output, mask)
        action = _as_environments_take_it(self.spec.action, heads.mode(self.spec.action, output.action))
        deviation = [] if output.log_std is None else [output.log_std * 1.0]
        return action, output.action, output.value, *deviation, *after


def _as_environments_take_it(spec: ActionSpec, row: Tensor) -> Tensor:
    """Whole numbers from 0 (a Discrete's one number without a dimension of its own), or numbers within
    the bounds.
    """
    if spec.kind == "categorical":
        return row.long().squeeze(1) if len(spec.sizes) == 1 else row.long()
    if spec.kind == "bernoulli":
        return row.to(torch.int8)
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    half, middle, least, most = map(torch.from_numpy, (*box_scale(low, high), low, high))
    return torch.minimum(torch.maximum(row * half + middle, least), most)


def export(weights: Weights, output: Path) -> float:
    """Writes the file if onnxruntime computes the same as the policy. Returns the largest difference."""
    import onnx

    filled = fill(weights, weights.settings, weights.spec)
    graph = Graph(weights.settings, weights.spec, filled)
    inputs, buffer = trial_inputs(graph, TRIAL_ROWS), io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The old exporter: the new one needs more packages and prints much more.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            tuple(map(torch.from_numpy, inputs.values())),
            buffer,  # type: ignore[arg-type]
            input_names=list(inputs),
            output_names=graph.output_names,
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *graph.output_names) if name != "log_std"},
            opset_version=OPSET,
            do_constant_folding=False,  # a folded output, such as log_std, would lose its name
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    described = {"env_id": weights.settings.env.id, "policy_sha256": filled.policy_sha256}
    onnx.helper.set_model_props(model, described | {"env_steps": str(weights.env_steps)})
    data = model.SerializeToString()
    difference = largest_difference(weights, filled, graph, data)
    if not difference <= TOLERANCE:
        raise InputError(
            f"{weights.path}: the ONNX graph differs from the policy by {difference:.2g}; its network"
            " cannot be exported"
        )
    write_atomically(output, data)
    return difference


def trial_inputs(graph: Graph, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random observations."""
    spec, draws = graph.spec, generator(seed, "trial observation")
    shapes = [part.shape for part in spec.parts] or [spec.observation_shape]
    values: list[Any] = [
        (
            draws.integers(0, 256, (count, *shape)).astype(np.uint8)
            if len(shape) == 3
            else draws.standard_normal((count, *shape), np.float32)
        )
        for shape in shapes
    ]
    if spec.masks_actions:
        mask = draws.integers(0, 2, (count, heads.num_outputs(spec.action))).astype(np.uint8)
        mask[:, 0] = 1
        values.append(mask)
    if graph.policy.cell is not None:
        values.append(draws.standard_normal((count, graph.state_size), np.float32))
    return dict(zip(graph.input_names, values, strict=True))


def largest_difference(weights: Weights, filled: Filled, graph: Graph, data: bytes) -> float:
    """Between onnxruntime and our policy, relative to the larger of 1 and the numbers themselves."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    actor = make_actor(weights.settings.changed("training", kernels="torch"), weights.spec, filled)
    actor.refresh()
    worst, names = 0.0, graph.output_names
    for count in (1, TRIAL_ROWS + 2):
        inputs = trial_inputs(graph, count, seed=count)
        found = dict(zip(names, session.run(names, inputs), strict=True))
        mask, state = inputs.pop("action_mask", None), inputs.pop("state", None)
        past = None if state is None else Past(state, np.zeros((1, count), np.uint8))
        output = actor.masked(rows_of(weights.spec, list(inputs.values())), mask, past)
        expected = {names[1]: output.action.numpy(), "value": output.value.numpy()}
        if past is not None:
            expected["next_state"] = past.state
        for name, values in expected.items():
            worst = max(worst, float((np.abs(found[name] - values) / np.maximum(1, np.abs(values))).max()))
    return worst


def rows_of(spec: EnvSpec, parts: list[np.ndarray]) -> np.ndarray:
    """Inputs of the graph as rows of the rollout."""
    if not spec.parts:
        return parts[0]
    rows = np.zeros((len(parts[0]), *spec.observation_shape), np.uint8)
    for part, values in zip(spec.parts, parts, strict=True):
        rows[:, part.offset : part.end] = np.ascontiguousarray(values).reshape(len(rows), -1).view(np.uint8)
    return rows
