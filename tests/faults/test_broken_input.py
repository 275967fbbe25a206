"""Checkpoints and configuration files that were broken by accident or on purpose: one line or a load.

Never a traceback, a hang or an execution. Half of the broken checkpoints get fresh checksums (anybody can
compute those), and some a fresh signature, so that what lies behind these checks is tested too.
"""

import contextlib
import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_ppo.exits import InputError
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.layers import load_settings
from parallel_ppo.settings.schema import Settings
from parallel_ppo.settings.yaml_files import to_yaml
from parallel_ppo.storage.user_key import signature
from parallel_ppo.training import checkpoint
from parallel_ppo.training.checkpoint import FILES, MANIFEST
from parallel_ppo.training.needs import check_resources
from parallel_ppo.training.planning import make_plan
from tests.conftest import ROOT
from tests.faults.world import CARTPOLE, World

HANG = 20  # seconds
SPARE_BYTES = 2 << 30  # of address space, for whatever a file makes its reader allocate
FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**62, 2**63, 10**30, 1e308, -1e308, float("nan"), float("inf"), "", "x", "\ud800",
    "../../../etc/passwd", "/dev/zero", [], {}, [[]], {"a": {"b": 1}}, "1" * 500, [0] * 1000,
]  # fmt: skip
ODD_YAML = [
    "[" * 30000, "{a: " * 2000, "- " * 30000, "? " * 9000, "!!python/object/apply:os.system [id]",
    "!!binary x", "!!bool maybe", "!!int ''", "!!timestamp x", "&a [*a]", "*b", "2020-13-45", "1" * 5000,
    "0x", "1e400", ".nan", "-.inf", "~", "''", "{1: 2}", "{[1]: 2}", "? {a: b}", "!!set {a}", "|\n  x",
    "9" * 30, "1:61:99", "-1", "0", "true", "[]", "{}", "0.0000001", "1e-400", "\x00", "\ufeff", "2020-01-01",
    "procgen", "os:path", "a:b:c", ":", "..", "1000000", "65536", "4096", "[64, [64]]", "[1000000000000]",
    "{a: !!binary aGk=}", "{a: 2020-01-01}",
]  # fmt: skip
few = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
many = settings(few, max_examples=20_000)


class Mark:
    """A pickle that leaves a mark when it is opened."""

    folder = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.folder,))


PAYLOADS = [
    pickle.dumps(Mark()), b"PK\x03\x04" + zlib.compress(bytes(10**7)), b"", b"\0" * 4096,
    struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 10**8) + b"{", b"[" * 100_000, b'{"a":' * 50_000,
]  # fmt: skip


class Audit:
    """Python calls it at every event; a hook cannot be removed, so it is switched on and off."""

    def __init__(self) -> None:
        self.is_on, self.executions = False, list[str]()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event in FORBIDDEN:
            self.executions.append(event)


AUDIT = Audit()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """At most one line, within seconds, in little memory, without executing anything."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a hang")

    before = signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + SPARE_BYTES, before[1][1]))
    AUDIT.is_on, AUDIT.executions = True, []
    signal.alarm(HANG)
    try:
        yield
    except InputError as problem:
        assert "\n" not in str(problem) and len(str(problem)) <= 1000, str(problem)
    finally:
        signal.alarm(0)
        AUDIT.is_on = False
        signal.signal(signal.SIGALRM, before[0])
        resource.setrlimit(resource.RLIMIT_AS, before[1])
    assert AUDIT.executions == []


# --- checkpoints --------------------------------------------------------------------------------------------

Choose = Callable[[Any], Any]  # one of a list, or a number below


def flip(choose: Choose, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(choose([1, 8, 200])):
        data[choose(min(len(data), choose([400, len(data)])))] ^= 1 << choose(8)
    file.write_bytes(bytes(data))


def cut(choose: Choose, file: Path) -> None:
    data, at = file.read_bytes(), choose(file.stat().st_size)
    file.write_bytes(choose([data[:at], data + data[:at], data[at:], data[:at] + bytes(64) + data[at:]]))


def replace(choose: Choose, file: Path) -> None:
    file.write_bytes(choose([*PAYLOADS, *(file.with_name(name).read_bytes() for name in FILES)]))


def odd_file(choose: Choose, file: Path) -> None:
    file.unlink()
    makers = [os.mkfifo, os.mkdir, lambda path: None]
    makers += [lambda path, to=to: os.symlink(to, path) for to in ("/dev/zero", file.name, "/nowhere")]
    choose(makers)(file)


def change_header(choose: Choose, file: Path) -> None:
    """Absurd shapes, types and offsets in a safetensors header that is otherwise well-formed."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = choose([key for key in header if key != "__metadata__"])
    offsets = [[0, 2**60], [10, 0], [0, 0], [-4, 4], [len(body)] * 2]
    kind = choose(["shape", "dtype", "data_offsets", "name", "entry", "metadata"])
    if kind == "name":
        header[choose(["x", "../x", "a" * 5000, ""])] = header.pop(name)
    elif kind == "entry":
        header[name] = choose(ODD_VALUES)
    elif kind == "metadata":
        header["__metadata__"] = choose(ODD_VALUES)
    else:
        shapes = [[2**62], [2**31, 2**31], [-1], [0], [], [1] * 1000]
        types = ["F64", "BF16", "F8_E4M3", "O", "BOOL", "I8", "", None]
        header[name][kind] = choose({"shape": shapes, "dtype": types, "data_offsets": offsets}[kind])
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def change_numbers(choose: Choose, file: Path) -> None:
    """Finite, well-formed and wrong."""
    data = bytearray(file.read_bytes())
    first = 8 + struct.unpack("<Q", data[:8])[0]
    for _ in range(choose([1, 5])):
        at = first + choose(max(1, (len(data) - first) // 8)) * 8
        data[at : at + 8] = struct.pack("<d", choose([float("nan"), float("inf"), -1e300, 1e300, -1.0]))
    file.write_bytes(bytes(data))


def change_manifest(choose: Choose, file: Path) -> None:
    content = json.loads(file.read_text())
    target, key = content, choose(list(content))
    while isinstance(target[key], dict) and target[key] and choose(5):
        target, key = target[key], choose(list(target[key]))
    kind = choose(["delete", "rename", "change", "change"])
    if kind == "delete":
        del target[key]
    elif kind == "rename":
        target[choose(["x", "../../x", "/etc/passwd"])] = target.pop(key)
    else:
        target[key] = choose(ODD_VALUES)
    file.write_text(json.dumps(content))


def forge(place: Path, is_signed: bool) -> None:
    """Makes the checksums right again, and the signature."""
    try:
        content = json.loads((place / MANIFEST).read_text())
        for name in FILES:
            data = (place / name).read_bytes()
            content["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if is_signed:
            content["signature"] = signature(checkpoint.canonical(content))
        (place / MANIFEST).write_text(json.dumps(content))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return


def break_checkpoint(data: st.DataObject, place: Path) -> None:
    def choose(what: Any) -> Any:
        return data.draw(st.integers(0, what - 1) if isinstance(what, int) else st.sampled_from(what))

    file = place / choose([*FILES, MANIFEST])
    special = [change_manifest] if file.name == MANIFEST else [change_header, change_numbers]
    choose([flip, cut, replace, odd_file, *special, *special])(choose, file)
    if file.is_file() and not file.is_symlink() and choose(2):
        forge(place, is_signed=bool(choose(2)))


def try_checkpoints(tmp_path: Path, profile: settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mark, "folder", str(tmp_path / "executed"))
    world, start, place = World(CARTPOLE), tmp_path / "start", tmp_path / "place"
    assert world.save(start, world.invent(3))
    base, expected = checkpoint.steps(start)[0], world.expected()

    @profile
    @given(st.data(), st.booleans())
    def is_loaded_or_refused(data: st.DataObject, trust: bool) -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(base, place / base.name)
        break_checkpoint(data, place / base.name)
        with guarded():
            found = checkpoint.newest(place, trust=trust, expected=expected)
            assert found is not None
            found[1].arrays["parameters"] = world.flat(found[2]).numpy()
            world.state.restore(found[1])

    is_loaded_or_refused()
    assert not (tmp_path / "executed").exists()


def test_broken_checkpoints_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_checkpoints(tmp_path, few, monkeypatch)


@pytest.mark.full
def test_many_broken_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_checkpoints(tmp_path, many, monkeypatch)


# --- configuration files ------------------------------------------------------------------------------------

TEXTS = [*(file.read_text() for file in sorted((ROOT / "config").glob("*.yaml"))), to_yaml(Settings())]


@st.composite
def broken_configurations(draw: st.DrawFn) -> bytes:
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.sampled_from([1, 1, 1, 3]))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["value", "value", "value", "line", "again", "delete", "indent"]))
        if kind == "value":
            lines[at] = f"{lines[at].partition(':')[0]}: {draw(st.sampled_from(ODD_YAML))}"
        elif kind == "line":
            lines[at] = draw(st.sampled_from(ODD_YAML))
        elif kind == "again":
            lines.insert(at, draw(st.sampled_from(lines)))
        elif kind == "delete":
            del lines[at : at + draw(st.integers(1, 3))]
            lines = lines or [""]
        else:
            lines[at] = " " * draw(st.integers(0, 4)) + lines[at]
    data = bytearray("\n".join(lines).encode(errors="surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3, 50])) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def try_configurations(tmp_path: Path, profile: settings) -> None:
    file, out = tmp_path / "config.yaml", tmp_path / "out"
    # Import and compile what a configuration may need: the first import of mujoco starts processes.
    for env in ("coinrun", "CartPole-v1", "HalfCheetah-v5", "LunarLander-v3"):
        with contextlib.suppress(InputError):
            make_plan(load_settings(file=None, flags={"env.id": env}), kind="parallel", output=out)

    @profile
    @given(broken_configurations())
    def is_loaded_or_refused(content: bytes) -> None:
        file.write_bytes(content)
        with guarded():
            plan = make_plan(load_settings(file=file, flags={}), kind="parallel", output=out)
            with torch.device("meta"):
                check_resources(plan, num_flat(Policy(plan.settings, plan.spec)))

    is_loaded_or_refused()


def test_broken_configurations_are_refused_in_one_line(tmp_path: Path) -> None:
    try_configurations(tmp_path, few)


@pytest.mark.full
def test_many_broken_configurations_are_refused(tmp_path: Path) -> None:
    try_configurations(tmp_path, settings(few, max_examples=5000))
