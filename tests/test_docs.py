"""The docs name every setting, metric, command and file there is."""

import re

import pytest

from parallel_ppo.settings.schema import Settings
from tests.conftest import ROOT, train


def keys_in(text: str) -> set[str]:
    """Everything in backticks in the first column of a table."""
    return {
        key
        for line in text.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    }


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for section, field in Settings.model_fields.items():
        part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
        assert keys_in(part) == set(field.annotation.model_fields), section


@pytest.mark.multiprocess
def test_every_metric_is_documented(tmp_path) -> None:
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
    assert set(run.metrics[0]) <= keys_in(text)
    assert all(f"`{key}`" in text for key in run.summary)


def test_every_root_script_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for script in ROOT.glob("*.py"):
        assert script.name in readme, script.name


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
