"""A network of the user (`training.policy: module:Class`): how it is made, and the rules that keep training exact.

It is any torch module from observations to features, made with (height, width, channels) or (num_inputs,).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from parallel_ppo.exits import InputError
from parallel_ppo.settings.named_code import calling_user_code, find

KEY = "training.policy"
ALONE_TOLERANCE = 1e-3  # for a row computed alone: kernels round differently for other batch shapes


def maker(path: str) -> Callable[..., nn.Module]:
    """Like the classes of `trunks.py`: makes trunks on the CPU that have `num_features`."""
    found = find(KEY, path)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(f"{KEY}: {path} is not a class derived from torch.nn.Module")

    def make(*shape: int) -> nn.Module:
        made_with = ", ".join(map(str, shape))
        with calling_user_code(f"{KEY}: {path}({made_with}) cannot be made"), torch.device("cpu"):
            trunk = found(*shape)
        if not isinstance(getattr(trunk, "num_features", None), int):
            trunk.num_features = _count_features(trunk, path, shape)  # type: ignore[assignment]
        return trunk

    return make


def _count_features(trunk: nn.Module, path: str, shape: tuple[int, ...]) -> int:
    rows = torch.zeros(2, *shape, device="cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        features = _run(trunk, rows.permute(0, 3, 1, 2) if len(shape) == 3 else rows, path)
    return features.shape[1]


def _run(trunk: nn.Module, observation: Any, path: str) -> Tensor:
    with calling_user_code(f"{KEY}: {path} cannot read the observations"):
        features = trunk(observation)
    if not isinstance(features, Tensor) or features.dim() != 2 or features.dtype != torch.float32:
        found = (
            f"{features.dtype} {tuple(features.shape)}" if isinstance(features, Tensor) else type(features)
        )
        raise InputError(f"{KEY}: {path} returned {found}; expected a float32 tensor (batch, features)")
    return features


def check(path: str, trunk: nn.Module, observation: Any, drawn: Callable[[int], nn.Module]) -> None:
    """InputError for the first rule that the network breaks. `drawn` makes trunks with initial weights."""
    for problem in _problems(path, trunk, observation, drawn):
        raise InputError(f"{KEY}: {path} {problem}")


def _problems(
    path: str, trunk: nn.Module, observation: Any, drawn: Callable[[int], nn.Module]
) -> Iterator[str]:
    parameters = dict(trunk.named_parameters())
    if not parameters:
        yield "has no parameters; assign its layers to attributes of the module, or use nn.Sequential"
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            yield f"has {name} of type {parameter.dtype}; expected float32"
        if not parameter.requires_grad:
            yield f"has the frozen parameter {name}; register it as a buffer"
    first, again, other = drawn(1), drawn(1), drawn(2)
    if not _same(first.parameters(), again.parameters()):
        yield "draws different initial weights each time it is made; draw them with torch alone"
    before = [buffer.clone() for buffer in trunk.buffers()]
    features, second = _run(trunk, observation, path), _run(trunk, observation, path)
    if not _same(before, trunk.buffers()):
        yield "changes its buffers when it runs (batch normalization?); use layers without running statistics"
    if not _same(first.buffers(), other.buffers()):
        yield "has buffers with random values; make them parameters or draw them from a fixed seed"
    if not torch.equal(features, second):
        yield "gives the same observations different features each time (dropout?); it must be deterministic"
    alone = [_run(trunk, _row(observation, index), path) for index in range(len(features))]
    if not torch.allclose(torch.cat(alone), features, ALONE_TOLERANCE, ALONE_TOLERANCE):
        yield (
            "gives an observation different features in another batch (batch normalization?); rows must not mix"
        )
    slopes = torch.autograd.grad(features.sum(), list(parameters.values()), allow_unused=True)
    for name, slope in zip(parameters, slopes, strict=True):
        if slope is None:
            yield f"does not use its parameter {name}; remove it"


def _row(observation: Any, index: int) -> Any:
    if isinstance(observation, list):
        return [_row(part, index) for part in observation]
    return observation[index : index + 1]


def _same(left: Any, right: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))
