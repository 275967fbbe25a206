"""How the kernels are compiled, loaded and called: in other processes, by workers, by benchmarks. Whether
trunks are right is in test_image_shapes.py.
"""

import ctypes
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from parallel_ppo.envs.contract import ActionSpec, EnvSpec
from parallel_ppo.envs.procgen import SPEC
from parallel_ppo.kernels import api, choice
from parallel_ppo.kernels import build as building
from parallel_ppo.kernels import native as loading
from parallel_ppo.kernels.api import available
from parallel_ppo.kernels.choice import NETWORKS, unsuitable
from parallel_ppo.policies import heads
from parallel_ppo.policies.parameters import initialize, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.training.planning import resolve_kernels
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.tasks import GRADIENT, Microbatch, Task
from parallel_ppo.workers.worker import Worker
from tests.kernels.networks import USABLE, make_case, native_result, needs_kernels, usual_shape
from tests.kernels.test_native_microbatch import write_plan

each_network = pytest.mark.parametrize("network", NETWORKS)


def spec_of(network: str) -> EnvSpec:
    """Procgen's, with images that the network reads."""
    return SPEC._replace(observation_shape=usual_shape(network))


def settings_of(network: str, **flags: Any) -> Settings:
    return load_settings(file=None, flags={"env.id": "coinrun", "training.policy": network, **flags})


@needs_kernels
@each_network
def test_parameters_are_those_of_the_module(network: str) -> None:
    settings, spec = settings_of(network), spec_of(network)
    trunk = Policy(settings, spec).trunk
    shapes = loading.parameter_shapes(network, spec.observation_shape)
    assert [tuple(p.shape) for p in trunk.parameters()] == shapes


HASH_SCRIPT = """
import hashlib, sys
sys.path.insert(0, {tests!r})
from test_kernels import digest_of
print(digest_of({network!r}))
"""


def digest_of(network: str) -> str:
    digest = hashlib.sha256()
    for result in native_result(network, make_case(network, 24)):
        digest.update(result.numpy().tobytes())
    return digest.hexdigest()


@needs_kernels
@each_network
@pytest.mark.multiprocess
def test_same_bits_in_every_process(network: str) -> None:
    script = HASH_SCRIPT.format(tests=str(Path(__file__).parent), network=network)
    for variant in USABLE:
        environment = os.environ | {
            "PARALLEL_PPO_KERNEL": variant,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.strip() == digest_of(network)


@needs_kernels
def test_a_nan_anywhere_in_a_pooling_window_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands among the nine: the numbers after it must not take its place."""
    (tmp_path / "one.c").write_text(
        f'#include "{Path(building.__file__).with_name("pool.h")}"\n'
        "void one(const float *rows, float *out, float *positive, uint8_t *index) {\n"
        "    pool_row(rows, rows + 3 * VL, rows + 6 * VL, 1, VL, out, positive, index);\n}\n"
        "int width(void) { return VL; }\n"
    )
    monkeypatch.setattr(building, "SOURCES", [tmp_path / "one.c"])
    monkeypatch.setenv("PARALLEL_PPO_KERNEL_CACHE", str(tmp_path / "cache"))
    for variant in USABLE:
        library = building.load(variant)
        rows = np.random.default_rng(0).normal(size=(9, library.width())).astype(np.float32)
        for hole in [None, *range(9)]:
            given = rows.copy()
            if hole is not None:
                given[hole] = np.nan
            out, positive, index = np.empty_like(rows[0]), np.empty_like(rows[0]), np.empty(16, np.uint8)
            library.one(*(ctypes.c_void_p(array.ctypes.data) for array in (given, out, positive, index)))
            np.testing.assert_array_equal(out, given.max(axis=0))
            np.testing.assert_array_equal(positive, np.maximum(given.max(axis=0), 0))
            if hole is None:
                np.testing.assert_array_equal(index[: len(out)], given.argmax(axis=0))


@needs_kernels
@pytest.mark.multiprocess
def test_several_processes_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source" / "tiny.c"
    source.parent.mkdir()
    source.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(building, "SOURCES", [source])
    monkeypatch.setenv("PARALLEL_PPO_KERNEL_CACHE", str(tmp_path / "cache"))
    with multiprocessing.get_context("fork").Pool(6) as pool:
        built = set(pool.map(building.build, ["avx2"] * 6, chunksize=1))
    assert set((tmp_path / "cache").iterdir()) == built
    assert len(built) == 1
    assert ctypes.CDLL(str(built.pop())).answer() == 42


@pytest.fixture
def fresh_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """An empty kernel cache, and nothing remembered from other tests."""
    monkeypatch.setenv("PARALLEL_PPO_KERNEL_CACHE", str(tmp_path / "cache"))
    api.load_library.cache_clear()
    yield tmp_path
    api.load_library.cache_clear()


def test_without_a_compiler_there_is_a_reason(fresh_loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh_loader))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(choice, "cpu_features", lambda: choice.NEEDED_FEATURES["avx512"])
    ok, reason = available()
    assert not ok
    assert "compiler" in reason or "x86-64" in reason


@pytest.mark.skipif(not USABLE, reason="needs a compiler")
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "of another system", "writable by others"])
def test_a_library_that_cannot_be_trusted_is_compiled_again(
    fresh_loader: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    source = fresh_loader / "tiny.c"
    source.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(building, "SOURCES", [source])
    library = building.build("avx2")
    whole = library.read_bytes()
    middle = len(whole) // 2
    if damage == "writable by others":
        library.chmod(0o777)
    elif damage == "of another system":
        other = b"not for this one"
        library.write_bytes(other + hashlib.sha256(other).digest())
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        library.write_bytes({"empty": b"", "cut": whole[:middle], "flipped": flipped}[damage])
    assert building.load("avx2").answer() == 42
    assert library.stat().st_mode & 0o022 == 0
    assert library.read_bytes() == whole and os.listdir(library.parent) == [library.name]


@pytest.mark.skipif(not USABLE, reason="needs a compiler")
def test_a_library_that_never_loads_is_a_reason_and_training_goes_on_with_torch(
    fresh_loader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: failed to map segment from shared object")

    source = fresh_loader / "tiny.c"
    source.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(building, "SOURCES", [source])
    monkeypatch.setattr(building.ctypes, "CDLL", refuse)
    settings = load_settings(file=None, flags={"env.id": "coinrun", "training.policy": "impala"})
    assert resolve_kernels(settings, SPEC).training.kernels == "torch"
    assert "torch computes the network" in (line := capsys.readouterr().err) and "failed to map" in line


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_a_cache_that_others_can_write_is_refused_as_it_is(fresh_loader: Path, mode: int) -> None:
    cache = fresh_loader / "cache"
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(building.BuildError, match="other users can write to the kernel cache"):
        building.build("avx2")
    assert cache.stat().st_mode & 0o7777 == mode and not os.listdir(cache)


def test_a_cache_of_another_user_is_refused(fresh_loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh_loader / "cache").mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(fresh_loader / "cache", 12346, -1)  # root's own are trusted
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(building.BuildError, match="other users can write to the kernel cache"):
        building.build("avx2")


@pytest.mark.skipif(not USABLE, reason="needs a compiler")
def test_compiling_is_announced_once(
    fresh_loader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = fresh_loader / "tiny.c"
    source.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(building, "SOURCES", [source])
    building.build("avx2")
    assert "compiling the kernels (avx2), once" in capsys.readouterr().err
    building.build("avx2")
    assert capsys.readouterr().err == ""


def test_an_installed_package_keeps_its_libraries_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARALLEL_PPO_KERNEL_CACHE", raising=False)
    assert building.cache_directory() == Path(building.__file__).parent / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "__file__", str(tmp_path / "site-packages/parallel_ppo/kernels/build.py"))
    assert building.cache_directory() == tmp_path / "parallel_ppo"


@pytest.mark.skipif(not USABLE, reason="needs a compiler")
def test_a_compiler_that_fails_is_quoted(fresh_loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fresh_loader / "broken.c"
    broken.write_text("#error no such luck\n")
    monkeypatch.setattr(building, "SOURCES", [broken])
    ok, reason = available()
    assert not ok
    assert "no such luck" in reason


def test_a_cpu_without_the_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cpu_features", lambda: frozenset({"sse2"}))
    ok, reason = available("avx2")
    assert not ok
    assert reason == "this CPU lacks avx2, fma"


def test_an_unknown_variant_is_refused() -> None:
    ok, reason = available("neon")
    assert not ok
    assert "choose from auto, avx512, avx2" in reason


@each_network
def test_every_network_is_known_on_its_usual_images(network: str) -> None:
    assert unsuitable(network, spec_of(network).observation_shape) is None


@needs_kernels
@pytest.mark.parametrize("sizes", [(15,), (2,), (1,), (3, 1, 5)])
def test_heads_choose_as_the_plain_ones(sizes: tuple[int, ...]) -> None:
    draws = torch.Generator().manual_seed(3)
    weights = [
        torch.randn(shape, generator=draws) * 0.2
        for shape in ((sum(sizes), 256), (sum(sizes),), (1, 256), (1,))
    ]
    features = torch.rand(500, 256, generator=draws)
    noise = torch.rand(500, len(sizes), generator=draws).numpy()
    noise[0], noise[1] = 0.0, 1.0  # the ends of the interval choose the first and the last action
    action, log_prob, value = loading.NativeHeads(weights, sizes).act(features, noise)
    outputs = functional.linear(features, *weights[:2])
    expected, expected_log_prob = heads.act(ActionSpec("categorical", sizes), outputs, None, noise)
    same = (action == expected).all(1)
    assert same.mean() > 0.995, "rounding may move a draw over an edge, rarely"
    np.testing.assert_allclose(log_prob[same], expected_log_prob[same], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, functional.linear(features, *weights[2:]), rtol=1e-4, atol=1e-5)
    assert (action[1] == np.array(sizes) - 1).all() and (action >= 0).all() and (action < sizes).all()


@needs_kernels
def test_heads_do_not_hide_a_nan() -> None:
    weights = [
        torch.zeros(3, 256),
        torch.tensor([0.0, float("nan"), 0.0]),
        torch.zeros(1, 256),
        torch.zeros(1),
    ]
    _, log_prob, _ = loading.NativeHeads(weights, (3,)).act(
        torch.zeros(2, 256), np.full((2, 1), 0.5, np.float32)
    )
    assert np.isnan(log_prob).all()


@needs_kernels
@pytest.mark.skipif(len(USABLE) < 2, reason="one instruction set only")
def test_heads_give_the_same_bits_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(4)
    weights = [torch.randn(shape, generator=draws) for shape in ((15, 256), (15,), (1, 256), (1,))]
    features, noise = torch.rand(40, 256, generator=draws), torch.rand(40, 1, generator=draws).numpy()
    results = []
    for variant in USABLE:
        monkeypatch.setenv("PARALLEL_PPO_KERNEL", variant)
        results.append(loading.NativeHeads(weights, (15,)).act(features, noise))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@needs_kernels
@each_network
def test_a_workers_microbatch_gradient_is_that_of_the_plain_formulation(network: str) -> None:
    """Also in the next minibatch, with other parameters: the weights must have been packed anew."""
    workers, spec = {}, spec_of(network)
    for kernels in ("native", "torch"):
        flags = {"env.num_envs": 4, "env.slice_envs": 2, "training.n_steps": 8, "training.batch_size": 16}
        settings = settings_of(network, **flags, **{"training.kernels": kernels})
        memory = Memory(settings, spec, num_flat(Policy(settings, spec)))
        worker = workers[kernels] = Worker(settings, spec, memory)
        initialize(worker.actor.policy, memory.tensor("parameters"), seed=1)
        draws = np.random.default_rng(1)
        memory.observation[:] = draws.integers(0, 256, memory.observation.shape, np.uint8)
        memory.action[:] = draws.integers(0, 15, memory.action.shape)
        for name in ("advantage", "target_return", "value"):
            getattr(memory, name)[:] = draws.standard_normal(getattr(memory, name).shape)
        memory.log_prob[:] = -np.log(15)
        write_plan(worker, (0.1, 0.9, 0.2))
    for minibatch in (0, 1):
        for worker in workers.values():
            worker.memory.tensor("parameters").mul_(1 + minibatch)
            for microbatch in range(worker.sizes.num_microbatches):
                worker.run(Task(GRADIENT, microbatch, 0, Microbatch(minibatch, 3)))
        ours, plain = (workers[kernels].memory.microbatch_gradient for kernels in ("native", "torch"))
        scale = np.abs(plain).max()
        np.testing.assert_allclose(ours / scale, plain / scale, rtol=0, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize(
    ("network", "shape", "num_layers"),
    [
        ("impala", ["--side", "72", "--width", "2", "--layers"], 7),
        ("nature", ["--side", "84", "--channels", "4", "--layers"], 4),
        ("small_image", ["--side", "20"], 0),
    ],
)
@pytest.mark.multiprocess
def test_the_benchmark_names_every_layer(
    network: str, shape: list[str], num_layers: int, tmp_path: Path
) -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels.py"
    output = tmp_path / "kernels.json"
    command = [
        sys.executable,
        str(script),
        "--policy",
        network,
        *shape,
        "--rounds",
        "1",
        "--microbatch",
        "2",
        "--batch",
        "2",
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    layers = [row["layer"] for row in json.loads(output.read_text())["layers"]]
    assert len(layers) == num_layers
    assert all(layer in done.stdout for layer in layers)
    bad = subprocess.run([*command, "--side", "97"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and f"error: --policy {network}: images are 97x97" in bad.stderr
