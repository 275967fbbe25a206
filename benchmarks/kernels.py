"""Our kernels, torch and sgemm side by side on one core: the whole trunk of a network, and with --layers each
of its layers.

    taskset -c 1 python benchmarks/kernels.py --policy impala --output kernels.json

All candidates take turns in every round, and times are CPU times of the one thread, so a busy machine
disturbs all alike. Medians over the rounds; ratios are taken within each round. "GFLOP/s" counts the
operations of the plain formulation, so Winograd's may exceed the peak.
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
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain_trunks import draw_parameters, plain_trunk
from parallel_ppo.arguments import Parser, positive, run
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.choice import NETWORKS, unsuitable
from parallel_ppo.kernels.native import NativeTrunk, parameter_shapes, pointers_to
from parallel_ppo.machine.placement import keep_freed_memory
from parallel_ppo.machine.resources import format_cpu_list, read_machine

SGEMM_SIZE = 1024
SGEMM_FLOPS = 2 * SGEMM_SIZE**3
NATURE_STRIDES = (4, 2, 1)
Candidates = dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """A network on images of one shape."""

    network: str
    image: tuple[int, int, int]
    width: int

    @property
    def name(self) -> str:
        width = f", width {self.width}" if self.width > 1 else ""
        return f"{self.network} on {'x'.join(map(str, self.image))}{width}"

    def trunk(self) -> NativeTrunk:
        return NativeTrunk(self.network, self.image, factor=self.width)

    def images(self, count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, *self.image), dtype=torch.uint8)

    def parameters(self) -> list[torch.Tensor]:
        shapes = parameter_shapes(self.network, self.image, self.width)
        return draw_parameters(shapes, torch.Generator().manual_seed(0))


def make_case(network: str, side: int | None, channels: int, width: int) -> Case:
    side = side or NETWORKS[network].usual_side
    image = side, side, channels
    reason = unsuitable(network, image, factor=width)
    if reason:
        raise InputError(f"--policy {network}: {reason}")
    return Case(network, image, width if network in ("impala", "impoola") else 1)


def in_turns(candidates: Candidates, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each candidate in each round, after one round of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 1):
        for name, candidate in candidates.items():
            start = time.thread_time()
            candidate()
            if round_number:
                times[name].append(time.thread_time() - start)
    return times


def sgemm() -> Callable[[], Any]:
    a, b, result = (torch.randn(SGEMM_SIZE, SGEMM_SIZE) for _ in range(3))
    return lambda: torch.mm(a, b, out=result)


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return {"median": statistics.median(values), "low": ordered[quarter], "high": ordered[-1 - quarter]}


# --- whole networks -----------------------------------------------------------------------------------------


def whole_network(case: Case, rounds: int, microbatch: int, batch: int) -> dict[str, Any]:
    observation, parameters = case.images(microbatch), case.parameters()
    small = observation[:batch].contiguous()
    native, inference = case.trunk(), case.trunk()
    slope = torch.randn(microbatch, native.num_features)
    inference.load(parameters)
    gradients = [torch.empty_like(parameter) for parameter in parameters]
    plain = [
        (p.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p.clone()).requires_grad_()
        for p in parameters
    ]

    def train_native() -> None:
        native.load(parameters, training=True)
        features, activations = native.forward(observation)
        native.backward(observation, features, activations, slope, gradients)

    def train_torch() -> None:
        torch.autograd.grad(plain_trunk(case.network, observation, plain), plain, slope)

    @torch.inference_mode()
    def infer_torch() -> None:
        plain_trunk(case.network, small, plain)

    candidates: Candidates = {
        "native training": train_native,
        "torch training": train_torch,
        "native inference": lambda: inference.features(small),
        "torch inference": infer_torch,
        "sgemm": sgemm(),
    }
    times = in_turns(candidates, rounds)
    peak = [SGEMM_FLOPS / seconds / 1e9 for seconds in times["sgemm"]]
    result: dict[str, Any] = {"sgemm_gflops": spread(peak), "variant": native.variant}
    for name, samples in (("training", microbatch), ("inference", batch)):
        with FlopCounterMode(display=False) as counter:
            candidates[f"torch {name}"]()
        gflops = counter.get_total_flops() / 1e9
        ours, theirs = times[f"native {name}"], times[f"torch {name}"]
        result[name] = {
            "samples": samples,
            "native_samples_per_second": spread([samples / seconds for seconds in ours]),
            "torch_samples_per_second": spread([samples / seconds for seconds in theirs]),
            "speedup": spread([their / our for our, their in zip(ours, theirs, strict=True)]),
            "native_of_sgemm": spread([gflops / t / p for t, p in zip(ours, peak, strict=True)]),
            "torch_of_sgemm": spread([gflops / t / p for t, p in zip(theirs, peak, strict=True)]),
        }
    return result


# --- layers -------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    number: int  # as the kernels count them
    weight: tuple[int, ...]
    side: int  # of the input image; 1 of a linear layer
    stride: int = 1
    padding: int = 0
    is_pooled: bool = False

    @property
    def name(self) -> str:
        kind = "linear" if len(self.weight) == 2 else f"conv {self.weight[2]}x{self.weight[3]}"
        kind += ", pool" if self.is_pooled else ""
        return f"{kind} {self.weight[1]}->{self.weight[0]}" + (
            f", {self.side}x{self.side}" if self.side > 1 else ""
        )

    @property
    def flops(self) -> int:
        """Operations of one pass over a sample: forward, backward to the data, or backward to the weights."""
        kernel = self.weight[2] if len(self.weight) == 4 else 1
        out = (self.side + 2 * self.padding - kernel) // self.stride + 1
        return 2 * torch.Size(self.weight).numel() * out**2


def layers_of(case: Case) -> list[Layer]:
    """Each kind of layer once."""
    weights = [shape for shape in parameter_shapes(case.network, case.image, case.width) if len(shape) > 1]
    side, layers = case.image[0], list[Layer]()
    for number, weight in enumerate(weights):
        if len(weight) == 2:
            layers.append(Layer(number, weight, 1))
        elif case.network == "nature":
            stride = NATURE_STRIDES[number]
            layers.append(Layer(number, weight, side, stride))
            side = (side - weight[2]) // stride + 1
        else:
            is_pooled = number % 5 == 0  # the first of a block
            layers.append(Layer(number, weight, side, 1, 1, is_pooled))
            side = (side + 1) // 2 if is_pooled else side
    return list({layer[1:]: layer for layer in reversed(layers)}.values())[::-1]


def torch_layer(layer: Layer, microbatch: int) -> Candidates:
    """The layer alone in torch, without its pool."""
    last: Any = {"memory_format": torch.channels_last} if len(layer.weight) == 4 else {}
    sides = [layer.side] * (len(layer.weight) - 2)
    x = torch.randn(microbatch, layer.weight[1], *sides).contiguous(**last).requires_grad_(layer.number > 0)
    weight = torch.randn(layer.weight).contiguous(**last).requires_grad_()
    bias = torch.randn(layer.weight[0], requires_grad=True)

    def forward() -> torch.Tensor:
        if layer.side == 1:
            return functional.linear(x, weight, bias)
        return functional.conv2d(x, weight, bias, layer.stride, layer.padding)

    result, wanted = forward(), [leaf for leaf in (x, weight, bias) if leaf.requires_grad]
    slope = torch.randn_like(result)
    return {
        "torch forward": torch.no_grad()(forward),
        "torch backward": lambda: torch.autograd.grad(result, wanted, slope, retain_graph=True),
    }


def layers_apart(case: Case, rounds: int, microbatch: int) -> list[dict[str, Any]]:
    observation, parameters, native = case.images(microbatch), case.parameters(), case.trunk()
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
    for layer in layers_of(case):
        candidates = torch_layer(layer, microbatch)
        for name, is_backward in (("native forward", False), ("native backward", True)):
            candidates[name] = native_layer(layer.number, is_backward)
        row: dict[str, Any] = {"layer": layer.name, "mflop": layer.flops / 1e6}
        for name, seconds in in_turns(candidates | {"sgemm": sgemm()}, rounds).items():
            passes = 2 if name.endswith("backward") and layer.number else 1
            flops = SGEMM_FLOPS if name == "sgemm" else microbatch * layer.flops * passes
            row[name] = spread([flops / t / 1e9 for t in seconds])
        rows.append(row)
    return rows


# --- the command --------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    network = result["network"]
    peak = network["sgemm_gflops"]["median"]
    print(f"{result['policy']}: {result['cpu']}, torch {result['torch']}, 1 core, {network['variant']},"
          f" sgemm {peak:.0f} GFLOP/s")  # fmt: skip
    for name in ("training", "inference"):
        row = network[name]
        middle = {key: value["median"] for key, value in row.items() if key != "samples"}
        print(
            f"{name} of {row['samples']}: native {middle['native_samples_per_second']:.0f} samples/s"
            f" ({middle['native_of_sgemm']:.0%} of sgemm), torch {middle['torch_samples_per_second']:.0f}"
            f" ({middle['torch_of_sgemm']:.0%}); {middle['speedup']:.2f}x"
            f" [{row['speedup']['low']:.2f}, {row['speedup']['high']:.2f}]"
        )
    for number, row in enumerate(result["layers"]):
        names = [name for name in row if name not in ("layer", "mflop")]
        if number == 0:
            print(f"\n{'GFLOP/s':28}" + "".join(f"{name:>18}" for name in names))
        print(f"{row['layer']:28}" + "".join(f"{row[name]['median']:18.0f}" for name in names))


def build_parser() -> Parser:
    example = "benchmarks/kernels.py --policy impala --core 1 --output kernels.json"
    parser = Parser(description=str(__doc__).splitlines()[0], examples=[example], quiet=False)
    add = parser.add_argument
    add("--policy", choices=NETWORKS, default="impala", help="(default: %(default)s)")
    for flag, default, what in (
        ("--side", None, "pixels of an image's side (default: 64 or 7)"),
        ("--channels", 3, "of an image; 4: stacked frames (default: %(default)s)"),
        ("--width", 1, "as training.width (default: %(default)s)"),
        ("--rounds", 15, "(default: %(default)s)"),
        ("--microbatch", 64, "samples of a training microbatch (default: %(default)s)"),
        ("--batch", 8, "samples of an inference batch (default: %(default)s)"),
    ):
        add(flag, type=positive, default=default, metavar="N", help=what)
    add("--layers", action="store_true", help="also measure each layer")
    add("--core", type=int, metavar="CPU", help="pin to this core")
    add("--output", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser


def main() -> int:
    arguments = build_parser().parse_args()
    case = make_case(arguments.policy, arguments.side, arguments.channels, arguments.width)
    if arguments.layers and case.network == "small_image":
        raise InputError("--layers: the layers of small_image cannot be called alone")
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
        "layers": layers_apart(case, arguments.rounds, arguments.microbatch) if arguments.layers else [],
    }
    show(result)
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run(main)
