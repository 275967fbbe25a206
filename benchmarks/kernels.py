"""Our kernels, torch and sgemm side by side on one core: the whole trunk of a network and each of its layers.

    taskset -c 1 python benchmarks/kernels.py --policy impala --output kernels.json

All candidates take turns in every round, and times are CPU times of the one thread, so a busy machine
disturbs all alike. Medians over the rounds; ratios are taken within each round. "GFLOP/s" counts the plain
formulation's operations whoever computes: Winograd's may exceed the peak.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run from a checkout, installed or not

import parallel_ppo.venv  # noqa: F401

# isort: split
import torch
from torch.nn import functional

from benchmarks.plain_trunks import draw_parameters, plain_trunk
from parallel_ppo.arguments import Parser, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.choice import NETWORKS, unsuitable
from parallel_ppo.kernels.native import (
    IMPALA_WIDTHS,
    NativeTrunk,
    parameter_shapes,
    pointers_to,
)
from parallel_ppo.machine.placement import keep_freed_memory
from parallel_ppo.machine.resources import format_cpu_list, read_machine


class Layer(NamedTuple):
    number: int  # as the kernels count them
    name: str
    size: int  # of the input image; 1 of a linear layer, as are the next three
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    repeated: int = 1

    @property
    def is_linear(self) -> bool:
        return self.kernel == 1

    def flops(self) -> int:
        """Of one pass over one sample: forward, backward to the data, or backward to the weights."""
        side = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return 2 * self.inputs * self.outputs * self.kernel**2 * side**2


class Case(NamedTuple):
    """A network on images of one shape."""

    network: str
    side: int
    channels: int
    factor: int
    layers: list[Layer]

    @property
    def has_layers(self) -> bool:
        """Apart from each other; those of small images are not called alone."""
        return self.network != "small_image"

    @property
    def image(self) -> tuple[int, int, int]:
        return self.side, self.side, self.channels

    @property
    def name(self) -> str:
        width = f", width {self.factor}" if self.factor > 1 else ""
        return f"{self.network} on {self.side}x{self.side}x{self.channels}{width}"

    def forward_flops(self) -> int:
        return sum(layer.flops() * layer.repeated for layer in self.layers)

    def training_flops(self) -> int:
        """No gradient goes to the image."""
        return 3 * self.forward_flops() - self.layers[0].flops()

    def trunk(self) -> NativeTrunk:
        return NativeTrunk(self.network, self.image, factor=self.factor)

    def images(self, count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, *self.image), dtype=torch.uint8)


def impala_layers(side: int, channels: int, widths: Sequence[int], averages: bool) -> list[Layer]:
    layers = []
    for block, width in enumerate(widths):
        name = f"conv {channels}->{width}, {side}x{side}, pool"
        layers.append(Layer(5 * block, name, side, channels, width))
        side, channels = (side + 1) // 2, width
        name = f"conv {width}->{width}, {side}x{side} (4 of them)"
        layers.append(Layer(5 * block + 1, name, side, width, width, repeated=4))
    flat = channels * (1 if averages else side**2)
    return [*layers, Layer(15, f"linear {flat}->256", 1, flat, 256, 1, 1, 0)]


def nature_layers(side: int, channels: int) -> list[Layer]:
    layers = []
    for number, (kernel, stride, outputs) in enumerate(((8, 4, 32), (4, 2, 64), (3, 1, 64))):
        what = f"{kernel}x{kernel}/{stride}" if stride > 1 else f"{kernel}x{kernel}"
        name = f"conv {what}, {channels}->{outputs}, {side}x{side}"
        layers.append(Layer(number, name, side, channels, outputs, kernel, stride, 0))
        side, channels = (side - kernel) // stride + 1, outputs
    flat = channels * side**2
    return [*layers, Layer(3, f"linear {flat}->512", 1, flat, 512, 1, 1, 0)]


def small_image_layers(side: int, channels: int) -> list[Layer]:
    layers = [Layer(0, "kinds and brightness", side, 17 * channels, 16, 1, 1, 0)]
    layers.append(Layer(1, f"conv 16->16, {side}x{side}", side, 16, 16))
    while side > 8:
        layers.append(Layer(len(layers), f"conv 3x3/2, 16->16, {side}x{side}", side, 16, 16, stride=2))
        side = (side + 1) // 2
    flat = 16 * side**2
    return [*layers, Layer(len(layers), f"linear {flat}->128", 1, flat, 128, 1, 1, 0)]


def make_case(network: str, side: int | None, channels: int, factor: int) -> Case:
    side = side or NETWORKS[network].usual_side
    reason = unsuitable(network, (side, side, channels), factor=factor)
    if reason:
        raise InputError(f"--policy {network}: {reason}")
    if network in ("nature", "small_image"):
        layers_of = nature_layers if network == "nature" else small_image_layers
        return Case(network, side, channels, 1, layers_of(side, channels))
    widths = [width * factor for width in IMPALA_WIDTHS]
    layers = impala_layers(side, channels, widths, averages=network == "impoola")
    return Case(network, side, channels, factor, layers)


def make_parameters(case: Case) -> list[torch.Tensor]:
    shapes = parameter_shapes(case.network, case.image, case.factor)
    return draw_parameters(shapes, torch.Generator().manual_seed(0))


def in_turns(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each candidate in each round, after one round of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 1):
        for name, candidate in candidates.items():
            start = time.thread_time()
            candidate()
            if round_number:
                times[name].append(time.thread_time() - start)
    return times


def sgemm(size: int = 1024) -> Callable[[], Any]:
    a, b, result = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(a, b, out=result)


SGEMM_FLOPS = 2 * 1024**3


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(values),
        "low": ordered[len(ordered) // 4],
        "high": ordered[-1 - len(ordered) // 4],
    }


def whole_network(case: Case, rounds: int, microbatch: int, batch: int) -> dict[str, Any]:
    network, observation = case.network, case.images(microbatch)
    small = observation[:batch].contiguous()
    parameters = make_parameters(case)
    native, inference = case.trunk(), case.trunk()
    slope = torch.randn(microbatch, native.num_features)
    inference.load(parameters)
    gradients = [torch.empty_like(parameter) for parameter in parameters]
    plain = [
        (p.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p.clone()).detach()
        for p in parameters
    ]
    plain_leaves = [parameter.clone().requires_grad_() for parameter in plain]

    def train_native() -> None:
        native.load(parameters, training=True)
        features, activations = native.forward(observation)
        native.backward(observation, features, activations, slope, gradients)

    def train_torch() -> None:
        torch.autograd.grad(plain_trunk(network, observation, plain_leaves), plain_leaves, slope)

    @torch.inference_mode()
    def infer_torch() -> None:
        plain_trunk(network, small, plain)

    times = in_turns(
        {
            "native training": train_native,
            "torch training": train_torch,
            "native inference": lambda: inference.features(small),
            "torch inference": infer_torch,
            "sgemm": sgemm(),
        },
        rounds,
    )
    peak = [SGEMM_FLOPS / seconds / 1e9 for seconds in times["sgemm"]]
    result: dict[str, Any] = {
        "sgemm_gflops": spread(peak),
        "microbatch": microbatch,
        "batch": batch,
        "variant": native.variant,
    }
    for name, samples, flops in (
        ("training", microbatch, case.training_flops()),
        ("inference", batch, case.forward_flops()),
    ):
        ours, theirs = times[f"native {name}"], times[f"torch {name}"]
        result[name] = {
            "native_samples_per_second": spread([samples / t for t in ours]),
            "torch_samples_per_second": spread([samples / t for t in theirs]),
            "speedup": spread([their / our for our, their in zip(ours, theirs, strict=True)]),
            "native_of_sgemm": spread(
                [samples * flops / t / 1e9 / p for t, p in zip(ours, peak, strict=True)]
            ),
            "torch_of_sgemm": spread(
                [samples * flops / t / 1e9 / p for t, p in zip(theirs, peak, strict=True)]
            ),
        }
    return result


def torch_layer(layer: Layer, microbatch: int) -> dict[str, Callable[[], Any]]:
    """The layer alone in torch (without its pool), its three passes apart."""
    if layer.is_linear:
        x, w, dy = (
            torch.randn(microbatch, layer.inputs),
            torch.randn(layer.outputs, layer.inputs),
            torch.randn(microbatch, layer.outputs),
        )
        return {
            "torch forward": lambda: functional.linear(x, w),
            "torch backward-data": lambda: dy @ w,
            "torch backward-weights": lambda: dy.T @ x,
        }
    last = torch.channels_last
    x = torch.randn(microbatch, layer.inputs, layer.size, layer.size).contiguous(memory_format=last)
    w = torch.randn(layer.outputs, layer.inputs, layer.kernel, layer.kernel).contiguous(memory_format=last)
    bias = torch.randn(layer.outputs)
    stride, padding = [layer.stride] * 2, [layer.padding] * 2
    dy = torch.randn_like(functional.conv2d(x, w, bias, stride, padding))

    def backward(data: bool, weights: bool) -> Callable[[], Any]:
        mask = [data, weights, weights]
        return lambda: torch.ops.aten.convolution_backward(
            dy, x, w, [layer.outputs], stride, padding, [1, 1], False, [0, 0], 1, mask
        )

    return {
        "torch forward": lambda: functional.conv2d(x, w, bias, stride, padding),
        "torch backward-data": backward(True, False),
        "torch backward-weights": backward(False, True),
    }


def layers_apart(case: Case, rounds: int, microbatch: int) -> list[dict[str, Any]]:
    observation, parameters, native = case.images(microbatch), make_parameters(case), case.trunk()
    native.load(parameters, training=True)
    features, place = native.forward(observation)
    gradients = [torch.empty_like(parameter) for parameter in parameters]
    native.backward(observation, features, place, torch.randn_like(features), gradients)

    def native_layer(number: int, backward: bool) -> Callable[[], Any]:
        return lambda: native.call(
            "layer", number, int(backward), observation.data_ptr(), microbatch,
            native.parameter_pointers, native.packed.data_ptr(), place.data_ptr(),
            native.scratch.data_ptr(), features.data_ptr(), pointers_to(gradients),
        )  # fmt: skip

    rows = []
    for layer in case.layers:
        candidates = torch_layer(layer, microbatch)
        candidates |= {
            "native forward": native_layer(layer.number, False),
            "native backward": native_layer(layer.number, True),
            "sgemm": sgemm(),
        }
        times = in_turns(candidates, rounds)
        row: dict[str, Any] = {"layer": layer.name, "mflop": layer.flops() / 1e6}
        for name, seconds in times.items():
            passes = 2 if name == "native backward" and layer.number else 1
            flops = SGEMM_FLOPS if name == "sgemm" else microbatch * layer.flops() * passes
            row[name] = spread([flops / t / 1e9 for t in seconds])
        rows.append(row)
    return rows


def show(result: dict[str, Any]) -> None:
    network = result["network"]
    print(
        f"{result['policy']}: {result['cpu']}, torch {result['torch']}, 1 core, {network['variant']}, sgemm "
        f"{network['sgemm_gflops']['median']:.0f} GFLOP/s"
    )
    for name, size in (("training", network["microbatch"]), ("inference", network["batch"])):
        row = network[name]
        ratio = row["speedup"]
        print(
            f"{name} of {size}: native {row['native_samples_per_second']['median']:.0f} samples/s"
            f" ({row['native_of_sgemm']['median']:.0%} of sgemm), torch "
            f"{row['torch_samples_per_second']['median']:.0f}"
            f" ({row['torch_of_sgemm']['median']:.0%}); {ratio['median']:.2f}x [{ratio['low']:.2f}, "
            f"{ratio['high']:.2f}]"
        )
    if not result["layers"]:
        return
    columns = [
        "torch forward",
        "native forward",
        "torch backward-data",
        "torch backward-weights",
        "native backward",
        "sgemm",
    ]
    print(f"\n{'GFLOP/s':32s}" + "".join(f"{column:>24s}" for column in columns))
    for row in result["layers"]:
        print(f"{row['layer']:32s}" + "".join(f"{row[column]['median']:24.0f}" for column in columns))


def main() -> int:
    example = "benchmarks/kernels.py --policy impala --core 1 --output kernels.json"
    parser = Parser(description=__doc__.splitlines()[0], examples=[example], quiet=False)
    parser.add_argument(
        "--policy",
        choices=NETWORKS,
        default="impala",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--side", type=positive, metavar="N", help="pixels of an image's side (default: 64 or 7)"
    )
    for flag, default, what in (
        ("--channels", 3, "of an image; 4: stacked frames"),
        ("--width", 1, "as training.width"),
    ):
        parser.add_argument(
            flag, type=positive, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument("--rounds", type=positive, default=15, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--microbatch", type=positive, default=64, metavar="N", help="samples of a training microbatch"
    )
    parser.add_argument(
        "--batch", type=positive, default=8, metavar="N", help="samples of an inference batch"
    )
    parser.add_argument("--core", type=int, metavar="CPU", help="pin to this core")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures as JSON")
    arguments = parser.parse_args()
    case = make_case(arguments.policy, arguments.side, arguments.channels, arguments.width)
    ok, reason = available()
    if not ok:
        raise InputError(f"the kernels cannot be used here: {reason}")
    machine = read_machine()
    if arguments.core is not None:
        if arguments.core not in machine.cpus:
            raise InputError(f"--core {arguments.core}: expected one of {format_cpu_list(machine.cpus)}")
        os.sched_setaffinity(0, {arguments.core})
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do; torch would spend much of its time on page faults
    torch.manual_seed(0)
    result = {
        "cpu": machine.cpu_model,
        "torch": torch.__version__,
        "rounds": arguments.rounds,
        "policy": case.name,
        "network": whole_network(case, arguments.rounds, arguments.microbatch, arguments.batch),
        "layers": layers_apart(case, arguments.rounds, arguments.microbatch) if case.has_layers else [],
    }
    show(result)
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run(main)
