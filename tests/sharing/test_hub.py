"""Push, load and verify against a hub on the loopback interface. What needs huggingface_hub is run by
`make test-extras`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import numpy as safetensors

from parallel_ppo.evaluation import hub
from parallel_ppo.exits import InputError
from parallel_ppo.sharing.command import push
from tests.conftest import ROOT
from tests.sharing.conftest import REPO
from tests.sharing.fake_hub import FakeHub, fake_hub

TOKEN = "hf_thisisasecrettoken"


@pytest.mark.parametrize("name", ["user/name", "hub:user/name", "hub:u.s-e_r/Name.1@main", "a/b@refs/pr/1"])
def test_names_on_the_hub(name: str) -> None:
    assert "/" in hub.parse(name).repo
    assert str(hub.parse(name)).removeprefix("hub:") == name.removeprefix("hub:")


ELSEWHERE = """name /name user/ ../name user/.. user/a..b user/name/more user/name@ user/name@../main
user/name@-x ~/name https://h/a"""


@pytest.mark.parametrize(
    "name", ["", "user/na me", "user/name@a b", "user/name\n", "x" * 200 + "/a", *ELSEWHERE.split()]
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a name on the hub"):
        hub.parse(name)


def test_without_the_package_one_line_says_what_to_install(
    shared_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not there
    assert push([str(shared_run), "--repo", REPO]) == 2
    assert 'pip install "parallel_ppo[hub]"' in capsys.readouterr().err


def failing(name: str, error: Exception) -> SimpleNamespace:
    """A hub's client of which one function raises, as its files may be damaged."""

    def fail(*_: object, **__: object) -> None:
        raise error

    def lost(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    return SimpleNamespace(**{"HfApi": lambda: SimpleNamespace(model_info=lost), name: fail})


def test_a_damaged_login_or_cache_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), IsADirectoryError(21, "is a directory")):
        monkeypatch.setattr(hub, "library", lambda: failing("get_token", error))  # noqa: B023
        with pytest.raises(InputError, match=r"your login to the hub cannot be read .*hf auth login"):
            hub.check_login()
    monkeypatch.setattr(hub, "library", lambda: failing("scan_cache_dir", ValueError("a file")))
    with pytest.raises(InputError, match="ConnectionError: no network"):
        hub.fetch(REPO, ("policy.safetensors",))


@pytest.fixture
def server() -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub")
    with fake_hub() as running:
        yield running


def run(
    server: FakeHub, home: Path, program: str, *arguments: str, token: str = TOKEN
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client reads its environment when it is imported."""
    variables = {
        "HF_ENDPOINT": server.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


PUSH = "import sys; from parallel_ppo.sharing.command import push; sys.exit(push(sys.argv[1:]))"
VERIFY = "import sys; from parallel_ppo.sharing.command import verify; sys.exit(verify(sys.argv[1:]))"
EVALUATE = """
import sys
from parallel_ppo.commands.evaluate import evaluate
sys.exit(evaluate([sys.argv[1], "--num-episodes", "100", "--output", sys.argv[2], "--quiet"]))
"""
LOAD = """
import sys
from parallel_ppo.evaluation.policy_files import load
from parallel_ppo.exits import InputError
try:
    load(sys.argv[1])
except InputError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.slow
def test_push_load_verify(server: FakeHub, shared_run: Path, pristine: Path, tmp_path: Path) -> None:
    home = tmp_path / "hf"
    sent = run(server, home, PUSH, str(shared_run), "--repo", REPO, "--skip-play", "--private")
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.startswith(f"sent: {server.endpoint}/{REPO}/commit/")
    (files,) = server.revisions.values()
    assert files.keys() == {path.name for path in pristine.iterdir()}
    for name in ("README.md", "config.yaml", "hashes.txt", "evaluation.json"):
        assert files[name] == (pristine / name).read_bytes()
    arrays = safetensors.load((pristine / "policy.safetensors").read_bytes())
    for name, array in safetensors.load(files["policy.safetensors"]).items():
        assert np.array_equal(array, arrays.pop(name))
    assert not arrays
    assert server.authorizations == {f"Bearer {TOKEN}"} and server.repos[0]["name"] == "ppo-cartpole"
    first = server.resolve("main")

    evaluated = run(server, home, EVALUATE, f"hub:{REPO}@{first}", str(tmp_path / "evaluation.json"))
    assert evaluated.returncode == 0, evaluated.stderr
    again = json.loads((tmp_path / "evaluation.json").read_text())
    assert again["levels"] == json.loads(files["evaluation.json"])["levels"]

    verified = run(server, home, VERIFY, f"hub:{REPO}", "--iterations", "2")
    assert verified.returncode == 0, verified.stdout + verified.stderr

    server.commit({"policy.safetensors": files["policy.safetensors"][:-1] + b"x"})
    for name, code in ((REPO, 1), (f"{REPO}@{first}", 0)):
        loaded = run(server, home, LOAD, f"hub:{name}")
        assert loaded.returncode == code and ("was changed after it was shared" in loaded.stderr) == bool(
            code
        )
    missing = run(server, home, LOAD, f"hub:{REPO}@nothing")
    assert missing.stderr.startswith("refused: hub:") and missing.stderr.count("\n") == 1

    server.server_close()
    for name, code in ((first, 0), ("v1", 1)):
        offline = run(server, home, LOAD, f"hub:{REPO}@{name}")
        assert offline.returncode == code, offline.stderr
        assert ("using cached commit" in offline.stderr) != bool(code)

    for output in (sent, evaluated, verified, missing, offline):
        assert TOKEN not in output.stdout + output.stderr
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not kept and all(TOKEN.encode() not in data for data in files.values())


@pytest.mark.slow
def test_a_push_without_a_login_or_a_network_is_one_line(
    server: FakeHub, shared_run: Path, tmp_path: Path
) -> None:
    unknown = run(server, tmp_path, PUSH, str(shared_run), "--repo", REPO, "--skip-play", token="")
    assert unknown.returncode == 2 and "hf auth login" in unknown.stderr and unknown.stderr.count("\n") == 1
    server.server_close()
    lost = run(server, tmp_path, LOAD, f"hub:{REPO}")
    assert lost.stderr.startswith("refused: hub:") and lost.stderr.count("\n") == 1
