"""Every command that README and docs print is found and made short; `make test-extras` runs them."""

import re

import pytest

from tests.conftest import ROOT
from tools.docs_commands import NOT_RUN, commands_of, printed, reason_not_to_run, shortened

PAGE = """
Say `make train-parallel DURATION=6m`, `tools/suite.py --games all`, or `make dist` and `evaluate.py`.

```bash
cd examples
python train_timed.py --duration 1.0 \\
  --seed SEED     # a while
```

```
error: nothing
parallel-ppo train ...
parallel-ppo verify hub:user/name --iterations 10
```

```bash
#!/bin/bash
python elsewhere.py --on a-cluster
```
"""


def test_commands_are_found_in_blocks_and_in_the_text() -> None:
    assert [(found.where, found.folder, found.text) for found in commands_of(PAGE, "page.md")] == [
        ("page.md:2", ".", "make train-parallel DURATION=6m"),
        ("page.md:2", ".", "python tools/suite.py --games all"),
        ("page.md:2", ".", "make dist"),
        ("page.md:7", "examples", "python train_timed.py --duration 1.0 --seed SEED"),
        ("page.md:13", ".", "parallel-ppo verify hub:user/name --iterations 10"),
    ]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("make train-parallel DURATION=6m GAME=maze", "make train-parallel GAME=maze DURATION=5s"),
        ("python train_timed.py --duration 1.0 --num-envs 64",
         "python train_timed.py --duration 5s --num-envs 8 --n-steps 16 --batch-size 64"),
        ("parallel-ppo train --env CartPole-v1",
         "parallel-ppo train --env CartPole-v1 --total-timesteps 256"),
        ("python PROJECT/evaluate.py RUN",
         "python ../evaluate.py runs/p1 --num-episodes 2 --max-steps 50"),
        ("python tools/suite.py --games all -- --num-levels 200",
         "python tools/suite.py --games all --total-timesteps 256 --eval-episodes 2 --seeds 1 --"
         " --num-levels 200 --num-envs 8 --n-steps 16 --batch-size 64"),
    ],
)  # fmt: skip
def test_budgets_are_made_short_and_nothing_else_changes(text: str, short: str) -> None:
    assert shortened(text) == short


def test_what_is_not_run_stands_in_the_docs() -> None:
    commands = printed(ROOT)
    assert len(commands) > 60
    for pattern in NOT_RUN:
        assert any(re.search(pattern, command.text) for command in commands), pattern
    assert sum(reason_not_to_run(command.text) is not None for command in commands) < 20


def test_no_placeholder_is_left() -> None:
    for command in printed(ROOT):
        if reason_not_to_run(command.text) is None:
            words = re.findall(r"\b(?:RUN|DIR|SEED|NAME|PROJECT)\b", shortened(command.text))
            assert not words, command
