"""The docs name every setting, metric, command and file there is."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from parallel_ppo.commands import train as train_command
from parallel_ppo.records.metrics import METRICS
from tests.conftest import ROOT, train
from tools import document


def test_tables_of_settings_and_metrics_are_current() -> None:
    for path, text in document.pages().items():
        assert path.read_text() == text, f"{path.name}: run `python tools/document.py`"


@pytest.mark.multiprocess
def test_every_column_of_a_run_is_in_the_table_of_metrics(tmp_path) -> None:
    arguments = [
        "--env",
        "CartPole-v1",
        "--num-envs",
        "8",
        "--n-steps",
        "8",
        "--batch-size",
        "64",
        "--total-timesteps",
        "64",
    ]
    run = train(
        tmp_path / "run",
        *arguments,
        "--num-threads",
        "1",
        "--set",
        "evaluation.interval=1",
        script="train_timed.py",
    )
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert set(run.metrics[0]) <= METRICS.keys()
    assert all(f"`{key}`" in text for key in run.summary)


def test_torchruns_recipe_says_that_its_port_runs_code() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    recipes = [text for page in pages if "rdzv-backend=c10d" in (text := page.read_text())]
    assert recipes
    for text in recipes:
        _, _, rest = text.partition("rdzv-backend=c10d")
        assert "can run code as you" in rest[:600]


def test_every_root_script_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for script in {path.name for path in ROOT.glob("*.py")} - {"setup.py"}:
        assert script in readme, script


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)
    assert phony is not None
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert set(phony[1].split()) == explained


def test_links_between_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def printed_commands(*pages: str) -> list[list[str]]:
    """Every `python script ...` of these pages, as words."""
    found = []
    for page in pages:
        page_text = (ROOT / page).read_text().replace("\\\n", " ")
        for text in re.findall(r"(?:^|`)(python \w[\w/]*\.py[^`\n]*)", page_text, re.M):
            found.append(shlex.split(text.partition("#")[0])[1:])
    return found


def call(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> int:
    """As `python script arguments`, in this process."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.setattr(train_command, "leave", sys.exit)
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    return int(caught.value.code or 0)


def test_every_printed_command_has_a_script_that_knows_its_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = ["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
    commands = printed_commands(*pages)
    assert len(commands) > 20
    for script, *arguments in commands:
        assert (ROOT / script).is_file(), script
        if not script.startswith("benchmarks/"):
            end = arguments.index("--") if "--" in arguments else len(arguments)
            code = call(monkeypatch, script, *arguments[:end], "--help")
            shown = capsys.readouterr()
            assert code == 0, (script, shown.err)
            example = rf"examples:\n  \S*python {re.escape(script)}"
            assert re.search(example, shown.out) or script.startswith("examples/")


SHORT = {
    "train_parallel_timed.py": (
        "--env CartPole-v1 --num-envs 16 --n-steps 16 --batch-size 64 --total-timesteps 256"
    ),
    "train_timed.py": "--env CartPole-v1 --num-envs 16 --n-steps 16 --batch-size 64 --total-timesteps 256",
    "evaluate.py": "--num-episodes 2 --max-steps 5 --num-workers 1",
}


@pytest.mark.multiprocess
def test_commands_of_the_readme_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command of each script, in order, with a smaller budget."""
    monkeypatch.chdir(tmp_path)
    done = set()
    for script, *arguments in printed_commands("README.md"):
        if script in SHORT and script not in done:
            done.add(script)
            code = call(monkeypatch, script, *arguments, *SHORT[script].split())
            assert code == 0, (script, capsys.readouterr().err)
    assert done == set(SHORT)
