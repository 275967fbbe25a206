"""The model card: README.md of a shared policy, with the `model-index` that the Hugging Face hub reads."""

import shlex
import statistics
from typing import Any

import yaml

from parallel_ppo.printable import printable
from parallel_ppo.settings.learning import learning_sections
from parallel_ppo.settings.schema import Settings

FOLDER_FORMAT = "parallel_ppo shared policy 1"


def render(
    repo: str, settings: Settings, provenance: dict[str, Any], evaluation: dict[str, Any], *, has_film: bool
) -> str:
    env_id, algorithm = settings.env.id, settings.training.algorithm.upper()
    header = yaml.safe_dump(_header(repo, env_id, algorithm, evaluation), sort_keys=False, allow_unicode=True)
    resets = settings.recurrence.is_recurrent
    remembers = "  # remembers; policy.reset() where an episode ends" if resets else ""
    film = "\n<video src='replay.mp4' controls autoplay loop></video>\n" if has_film else ""
    return f"""---
{header}---
# {algorithm} on {_code(env_id)}

A policy trained with parallel_ppo for {provenance["env_steps"]:,} environment steps.
{film}
## Evaluation

{_table(evaluation)}

Mean over {evaluation["num_episodes"]} episodes of at most {evaluation["max_steps"]:,} steps, \
seed {evaluation["seed"]}, drawn actions; 95 % intervals in brackets; every episode is in `evaluation.json`.

## Use

```python
import parallel_ppo

policy = parallel_ppo.load("hub:{repo}")
action = policy.act(observation){remembers}
```

## Check

What was learned follows from the settings and the seed. `hashes.txt` holds the policy's hash after every
iteration; this trains again and compares:

```
parallel-ppo verify hub:{repo} --iterations 10
```

{_exactness(provenance)}

## Training

{_provenance(provenance)}

The settings (`config.yaml`):

```yaml
{_fenced(settings_yaml(settings).rstrip())}
```
"""


def settings_yaml(settings: Settings) -> str:
    """The learning settings only: the others depend on the machine."""
    return yaml.safe_dump(learning_sections(settings), sort_keys=False)


def _header(repo: str, env_id: str, algorithm: str, evaluation: dict[str, Any]) -> dict[str, Any]:
    results = []
    for level_set, part in evaluation["levels"].items():
        returns = [episode["return"] for episode in part["episodes"]]
        name = env_id if len(evaluation["levels"]) == 1 else f"{env_id} ({level_set} levels)"
        value = f"{statistics.fmean(returns):.2f} +/- {statistics.pstdev(returns):.2f}"
        results.append(
            {
                "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                "dataset": {"name": name, "type": env_id},
                "metrics": [
                    {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
                ],
            }
        )
    return {
        "library_name": "parallel_ppo",
        "pipeline_tag": "reinforcement-learning",
        "tags": [env_id, algorithm, "parallel_ppo", "reinforcement-learning", "deep-reinforcement-learning"],
        "model-index": [{"name": repo.rpartition("/")[2], "results": results}],
    }


def _table(evaluation: dict[str, Any]) -> str:
    rows = ["| levels | return | length | episodes |", "|---|---|---|---|"]
    for level_set, part in evaluation["levels"].items():
        mean, length = part["return"]["mean"], part["length"]["mean"]
        bounds = "" if mean["low"] is None else f" [{mean['low']:.2f}, {mean['high']:.2f}]"
        rows.append(
            f"| {_code(level_set)} | {mean['value']:.2f}{bounds} | {length['value']:.0f} |"
            f" {len(part['episodes'])} |"
        )
    return "\n".join(rows)


def _exactness(provenance: dict[str, Any]) -> str:
    if not provenance["reproducible"]:
        return "This run cannot be repeated bit for bit (`reproducible: false`)."
    kinds = provenance["arithmetic"]
    if kinds and all(kind.get("portable") == "true" for kind in kinds):
        return "Every x86-64-v3 CPU learns the same bits with the same minor version of Python and major version of NumPy (`portable: true`)."
    where = "; ".join(
        ", ".join(f"{name} {value}" for name, value in kind.items() if name in ("cpu", "torch", "numpy"))
        for kind in kinds
    )
    return (
        f"Bits are the same on the same CPU model and library versions ({_text(where)}); elsewhere they may"
        " differ (`portable: false`)."
    )


def _provenance(provenance: dict[str, Any]) -> str:
    rows = [
        ("command", _code(shlex.join(provenance["command"]))),
        ("seed", str(provenance["seed"])),
        ("iterations", f"{provenance['iteration']:,}"),
        ("commit", _code(str(provenance["git_commit"] or "unknown"))),
        ("version", _code(str(provenance["version"]))),
        ("policy_sha256", _code(provenance["policy_sha256"])),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _code(text: str) -> str:
    return f"`{_line(text).replace('`', ' ')}`"


def _text(text: str) -> str:
    """Escapes Markdown in names from outside."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return _line(text)


def _line(text: str) -> str:
    return printable(" ".join(text.split())).replace("|", "\\|")[:2000]


def _fenced(text: str) -> str:
    return printable(text).replace("```", "'''")
