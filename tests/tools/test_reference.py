"""Reference runs: what is done, what is continued, and what is asked of them meanwhile."""

import json
import sys
from pathlib import Path

import pytest

from tools import reference
from tools.reference import Reference, follow

TRAIN = """
import sys, time
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.reports.run_copies import copy_run
word = dict(zip(sys.argv[1::2], sys.argv[2::2]))
path = Path(word.get("--output-dir") or word["--resume"])
with open(path.parent / "trained", "a") as log:
    log.write(f"{{word['--total-timesteps']}} with {{word['--num-workers']}}\\n")
if word["--num-workers"] == "auto":
    (path.parent / "control").write_text("3")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
if not path.exists():
    copy_run(path, env__id="procgen:procgen-coinrun-v0", env__num_levels=20)
    (path / "checkpoints" / "latest").mkdir(parents=True)
"""
EVALUATE = """
import json, sys
from pathlib import Path
part = {"return": {"mean": {"value": 7.0, "low": 6.0, "high": 8.0}}}
report = {"levels": {"train": part, "test": part}, "first_frames": {"return_with_seen": {"value": 7.5}}}
Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps(report | {"num_episodes": 5}))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_run: Path) -> Path:
    (tmp_path / "train").write_text(TRAIN.format(root=str(Path(__file__).resolve().parents[2])))
    (tmp_path / "evaluate").write_text(EVALUATE)
    monkeypatch.setattr(
        reference, "command", lambda name, *rest: [sys.executable, str(tmp_path / name), *rest]
    )
    monkeypatch.setattr(reference.trainer, "POLL_SECONDS", 0.02)
    return tmp_path


def test_a_run_is_continued_and_uses_the_workers_that_are_asked_for(place: Path) -> None:
    one = Reference("coinrun-ppo", 2, ["--env", "coinrun"])
    follow(one, place, place, every=50, episodes=5)
    found = json.loads((place / "reference_coinrun-ppo.json").read_text())
    assert (place / "trained").read_text() == "50 with auto\n50 with 3\n100 with 3\n"
    assert len(found["rows"]) == 2 and found["flags"] == ["--env", "coinrun"]
    row = found["rows"][0]
    assert (row["train"]["value"], row["test_with_seen_frames"]["value"]) == (7.0, 7.5)
    assert len(row["policy_sha256"]) == 64 and row["cpu_model"] == "Test CPU"


def test_a_run_that_is_done_or_lost_is_not_repeated(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"steps": 50, "train": {"value": 1.0}, "test": {"value": 2.0}}
    (place / "reference_done.json").write_text(json.dumps({"rows": [row, row]}))
    (place / "reference_lost.json").write_text(json.dumps({"rows": [row]}))
    follow(Reference("done", 2, []), place, place)
    follow(Reference("lost", 2, []), place, place)
    assert not (place / "trained").exists()
    assert "1 of 2 evaluations, 50 steps, train 1.00, test 2.00\nlost: " in capsys.readouterr().out
