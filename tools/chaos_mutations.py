"""Input that someone broke, by accident or on purpose: checkpoints and configuration files, by the
thousand.

Half of the broken checkpoints get fresh checksums (anybody can compute those), and half a fresh
signature, so that what lies behind these checks is tested too. Whatever comes: a load or a refusal in one
line. Never a traceback, an execution or a hang.
"""

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from chaos_files import CARTPOLE, World

from parallel_ppo.exits import InputError
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training import checkpoint
from parallel_ppo.training.checkpoint import FILES, MANIFEST
from parallel_ppo.training.planning import make_plan
from parallel_ppo.training.session import check_resources

Report = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
HANG = 20  # seconds
FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**62, 2**63, 10**30, 1e308, -1e308, float("nan"), float("inf"), "", "x", "\ud800",
    "../../../etc/passwd",
    "/dev/zero", [], {}, [[]], {"a": {"b": 1}}, "1" * 500, [0] * 1000,
]  # fmt: skip


class Watch:
    """Counts what must not happen, in this process."""

    def __init__(self, memory_bytes: int) -> None:
        self.executions: list[str] = []
        self.active = False
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGALRM, self._hang)
        virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (virtual + memory_bytes, resource.RLIM_INFINITY))
        self.peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event in FORBIDDEN:
            self.executions.append(event)

    @staticmethod
    def _hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a hang")

    def run(self, action: Callable[[], Any]) -> tuple[str, str, float]:
        """(loaded, refused or failed; the line or traceback; seconds)."""
        began, self.active = time.monotonic(), True
        signal.alarm(HANG)
        try:
            action()
            outcome, text = "loaded", ""
        except InputError as problem:
            outcome, text = "refused", str(problem)
        except BaseException:
            outcome, text = "failed", traceback.format_exc()
        finally:
            signal.alarm(0)
            self.active = False
        if outcome == "refused" and ("\n" in text or len(text) > 1000):
            outcome = "failed"
        return outcome, text, time.monotonic() - began

    def growth_mb(self) -> float:
        return round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.peak_before) / 1000, 1)


class Bomb:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


# --- checkpoints --------------------------------------------------------------------------------------------


class CheckpointMutator:
    def __init__(self, draw: random.Random, mark: Path) -> None:
        self.draw = draw
        self.payloads = [
            pickle.dumps(Bomb(mark)), b"PK\x03\x04" + zlib.compress(bytes(10**7)),
            zlib.compress(bytes(10**7)), b"", b"\0" * 4096,
            struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 10**8) + b"{", b"[" * 100_000,
            b"{\"a\":" * 50_000, os.urandom(5000),
        ]  # fmt: skip

    def mutate(self, place: Path) -> None:
        file = place / self.draw.choice((*FILES, MANIFEST))
        kinds = [self.flip, self.cut, self.replace, self.odd_file, self.swap]
        kinds += [self.manifest] * 4 if file.name == MANIFEST else [self.header, self.header, self.numbers]
        self.draw.choice(kinds)(file)
        if file.is_file() and not file.is_symlink() and self.draw.random() < 0.6:
            self.forge(place)

    def flip(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        for _ in range(self.draw.choice((1, 1, 8, 200))):
            position = self.draw.randrange(min(len(data), self.draw.choice((400, len(data)))))
            data[position] ^= 1 << self.draw.randrange(8)
        file.write_bytes(bytes(data))

    def cut(self, file: Path) -> None:
        data, at = file.read_bytes(), self.draw.randrange(file.stat().st_size)
        file.write_bytes(
            self.draw.choice((data[:at], data + data[:at], data[at:], data[:at] + bytes(64) + data[at:]))
        )

    def replace(self, file: Path) -> None:
        file.write_bytes(self.draw.choice(self.payloads))

    def swap(self, file: Path) -> None:
        file.write_bytes((file.parent / self.draw.choice(FILES)).read_bytes())

    def odd_file(self, file: Path) -> None:
        file.unlink()
        kind = self.draw.randrange(6)
        if kind == 0:
            os.mkfifo(file)
        elif kind == 1:
            file.mkdir()
        elif kind < 5:
            file.symlink_to(("/dev/zero", file.name, "/nowhere")[kind - 2])

    def header(self, file: Path) -> None:
        """Absurd shapes, types and offsets in a safetensors header that is otherwise well-formed."""
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        name = self.draw.choice([key for key in header if key != "__metadata__"])
        kind = self.draw.randrange(6)
        if kind == 0:
            header[name]["shape"] = self.draw.choice([[2**62], [2**31, 2**31], [-1], [0], [], [1] * 1000])
        elif kind == 1:
            header[name]["dtype"] = self.draw.choice(["F64", "BF16", "F8_E4M3", "O", "BOOL", "I8", "", None])
        elif kind == 2:
            header[name]["data_offsets"] = self.draw.choice(
                [[0, 2**60], [10, 0], [0, 0], [-4, 4], [len(body)] * 2]
            )
        elif kind == 3:
            header[self.draw.choice(["x", "../x", "a" * 5000, ""])] = header.pop(name)
        elif kind == 4:
            header[name] = self.draw.choice(ODD_VALUES)
        else:
            header["__metadata__"] = self.draw.choice(ODD_VALUES)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + body)

    def numbers(self, file: Path) -> None:
        """Finite, well-formed and wrong."""
        data = bytearray(file.read_bytes())
        first = 8 + struct.unpack("<Q", data[:8])[0]
        for _ in range(self.draw.choice((1, 5))):
            at = first + self.draw.randrange(max(1, (len(data) - first) // 8)) * 8
            data[at : at + 8] = struct.pack(
                "<d", self.draw.choice((float("nan"), float("inf"), -1e300, 1e300, -1.0))
            )
        file.write_bytes(bytes(data))

    def manifest(self, file: Path) -> None:
        content = json.loads(file.read_text())
        target, key = content, self.draw.choice(list(content))
        while isinstance(target[key], dict) and target[key] and self.draw.random() < 0.8:
            target, key = target[key], self.draw.choice(list(target[key]))
        kind = self.draw.randrange(4)
        if kind == 0:
            del target[key]
        elif kind == 1:
            target[self.draw.choice(["x", "../../x", "/etc/passwd"])] = target.pop(key)
        else:
            target[key] = self.draw.choice(ODD_VALUES)
        file.write_text(json.dumps(content))

    def forge(self, place: Path) -> None:
        """Makes the checksums right again, and sometimes the signature."""
        try:
            content = json.loads((place / MANIFEST).read_text())
            for name in FILES:
                data = (place / name).read_bytes()
                content["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            if self.draw.random() < 0.6:
                content["signature"] = signature(checkpoint.canonical(content))
            (place / MANIFEST).write_text(json.dumps(content))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return


def mutate_checkpoints(folder: Path, *, number: int, seed: int = 6) -> Report:
    world, start, mark = World(CARTPOLE), folder / "start", folder / "executed"
    original = world.invent(3)
    assert world.save(start, original)
    base = checkpoint.steps(start)[0]
    mutator = CheckpointMutator(random.Random(seed), mark)
    expected, place = world.expected(), folder / "place"
    watch = Watch(1 << 30)
    outcomes, failures, slowest = {"loaded": 0, "refused": 0, "failed": 0}, [], 0.0
    files = {name: (base / name).read_bytes() for name in (*FILES, MANIFEST)}
    for index in range(number):
        shutil.rmtree(place, ignore_errors=True)
        step = place / base.name
        step.mkdir(parents=True)
        for name, data in files.items():
            (step / name).write_bytes(data)
        mutator.mutate(step)

        def load(trust: bool = index % 2 == 0) -> None:
            found = checkpoint.newest(place, trust=trust, expected=expected)
            assert found is not None
            snapshot = found[1]
            snapshot.arrays["parameters"] = world.flat(found[2]).numpy()
            world.state.restore(snapshot)

        outcome, text, seconds = watch.run(load)
        outcomes[outcome] += 1
        slowest = max(slowest, seconds)
        if outcome == "failed":
            failures.append(text[-1500:])
    return {"mutations": number, **outcomes, "executions": len(watch.executions) + mark.exists(),
    "slowest_s": round(slowest, 3),
            "peak_memory_growth_mb": watch.growth_mb(), "failures": failures[:3]}  # fmt: skip


# --- configuration files ------------------------------------------------------------------------------------

ODD_YAML = [
    "[" * 30000, "{a: " * 2000, "- " * 30000, "? " * 9000, "!!python/object/apply:os.system [id]",
    "!!binary x", "!!bool maybe", "!!int ''", "!!timestamp x",
    "&a [*a]", "*b", "2020-13-45", "1" * 5000, "0x", "1e400", ".nan", "-.inf", "~", "''", "{1: 2}",
    "{[1]: 2}", "? {a: b}", "!!set {a}", "|\n  x",
    "9" * 30, "1:61:99", "-1", "0", "true", "[]", "{}", "0.0000001", "1e-400", "\x00", "\ufeff", "2020-01-01",
    "procgen", "os:path", "a:b:c", ":", "..",
    "1000000", "65536", "4096", "[64, [64]]", "[1000000000000]", "{a: !!binary aGk=}", "{a: 2020-01-01}",
]  # fmt: skip


class ConfigMutator:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        shipped = [file.read_text() for file in sorted((ROOT / "config").glob("*.yaml"))]
        self.texts = [*shipped, to_yaml(Settings())]

    def mutated(self) -> bytes:
        lines = self.draw.choice(self.texts).splitlines()
        for _ in range(self.draw.choice((1, 1, 1, 3))):
            at, kind = self.draw.randrange(len(lines)), self.draw.randrange(7)
            key, _, _ = lines[at].partition(":")
            if kind < 3:
                lines[at] = f"{key}: {self.draw.choice(ODD_YAML)}"
            elif kind == 3:
                lines[at] = self.draw.choice(ODD_YAML)
            elif kind == 4:
                lines.insert(at, self.draw.choice(lines))
            elif kind == 5:
                del lines[at : at + self.draw.randrange(4)]
                lines = lines or [""]
            else:
                lines[at] = " " * self.draw.randrange(5) + lines[at]
        data = bytearray("\n".join(lines).encode(errors="surrogatepass"))
        if self.draw.random() < 0.3 and data:
            for _ in range(self.draw.choice((1, 3, 50))):
                data[self.draw.randrange(len(data))] = self.draw.randrange(256)
        return bytes(data)


def mutate_configs(folder: Path, *, number: int, seed: int = 7) -> Report:
    mutator, file = ConfigMutator(random.Random(seed)), folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    for env in ("coinrun", "CartPole-v1"):  # imports and compiles what a configuration may need
        make_plan(load_settings(file=None, flags={"env.id": env}), kind="parallel", output=folder / "out")
    watch = Watch(2 << 30)
    outcomes, failures, slowest = {"loaded": 0, "refused": 0, "failed": 0}, [], 0.0

    def load() -> None:
        settings = load_settings(file=file, flags={})
        plan = make_plan(settings, kind="parallel", output=folder / "out")
        with torch.device("meta"):
            check_resources(plan, num_flat(Policy(plan.settings, plan.spec)))

    for _ in range(number):
        file.write_bytes(mutator.mutated())
        outcome, text, seconds = watch.run(load)
        outcomes[outcome] += 1
        slowest = max(slowest, seconds)
        if outcome == "failed":
            failures.append(text[-1500:])
            shutil.copy(file, folder / f"failed-{len(failures)}.yaml")
    return {"mutations": number, **outcomes, "executions": len(watch.executions), "slowest_s": round(slowest,
        3),
            "peak_memory_growth_mb": watch.growth_mb(), "failures": failures[:3]}  # fmt: skip


# --- through the real command -------------------------------------------------------------------------------


def mutate_for_commands(folder: Path, *, number: int, seed: int = 8) -> Report:
    """A finished run with a broken checkpoint is resumed, and a broken configuration is started; half of
    each.
    """
    from chaos_training import Training

    draw = random.Random(seed)
    small = [
        "--env",
        "CartPole-v1",
        "--num-envs",
        "4",
        "--n-steps",
        "8",
        "--batch-size",
        "32",
        "--num-workers",
        "1",
    ]
    assert (
        Training(
            [*small, "--total-timesteps", "64", "--output-dir", str(folder / "run")], folder / "run.log"
        ).wait(300)
        == 0
    )
    configs, checkpoints = ConfigMutator(draw), CheckpointMutator(draw, folder / "executed")
    codes: dict[str, int] = {}
    for index in range(number):
        if index % 2:
            shutil.rmtree(folder / "copy", ignore_errors=True)
            shutil.copytree(folder / "run", folder / "copy", symlinks=True)
            newest = checkpoint.steps(folder / "copy" / "checkpoints")[0]
            if index % 4 == 1:
                for older in checkpoint.steps(folder / "copy" / "checkpoints")[1:]:
                    shutil.rmtree(older)
            checkpoints.mutate(newest)
            arguments = ["--resume", str(folder / "copy")]
        else:
            (folder / "config.yaml").write_bytes(configs.mutated())
            arguments = ["--config", str(folder / "config.yaml"), "--print-config"]
        code = str(Training(arguments, folder / "commands.log").wait(300))
        codes[code] = codes.get(code, 0) + 1
    text = (folder / "commands.log").read_text(errors="replace")
    return {"commands": number, "exit_codes": codes, "other_exit_codes": sum(n for code,
        n in codes.items() if code not in ("0", "2")),
            "tracebacks": text.count("Traceback"),
            "executions": int((folder / "executed").exists())}  # fmt: skip
