"""A trained policy, loaded with an environment to play in."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.envs.families import probe
from parallel_ppo.evaluation import policy_files
from parallel_ppo.evaluation.policy_files import Filled, Weights
from parallel_ppo.exits import InputError
from parallel_ppo.kernels.choice import unusable
from parallel_ppo.printable import printable
from parallel_ppo.settings.env_families import canonical, family_of
from parallel_ppo.settings.schema import EnvSettings, Settings
from parallel_ppo.workers.playing import LEVEL_SETS, has_unseen_levels


class LoadedPolicy(NamedTuple):
    weights: Weights
    settings: Settings  # of the environment it plays in, and how it plays
    spec: EnvSpec
    filled: Filled


def load_policy(
    checkpoint: Path,
    *,
    env_id: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    trust: bool = False,
    plays: bool = True,
    **evaluation: Any,
) -> LoadedPolicy:
    """Reports every problem with the policy or its environment. Without `plays` the environment is not made.
    `evaluation`: settings of that section.
    """
    weights, lines = policy_files.load(checkpoint, trust=trust, plays=plays)
    for line in lines:
        print(printable(line), file=sys.stderr)
    settings = weights.settings.model_copy(update={"env": chosen_env(weights.settings.env, env_id)})
    settings = settings.changed("training", seed=seed)
    settings = settings.changed("evaluation", interval=1, deterministic=deterministic, **evaluation)
    spec = weights.spec if weights.spec.spaces and not plays else probe(settings)
    filled = policy_files.fill(weights, settings, spec)
    return LoadedPolicy(weights, usable_kernels(settings, spec), spec, filled)


def usable_kernels(settings: Settings, spec: EnvSpec) -> Settings:
    """A policy that was trained with native kernels also plays on machines that cannot run them."""
    training = settings.training
    if training.kernels != "native":
        return settings
    reason = unusable(training.policy, spec.observation_shape, training.hidden_sizes, training.width)
    if reason is None:
        return settings
    print(
        "note: trained with native kernels, which do not run here "
        f"({' '.join(reason.split())[:200]}); torch's round a little differently",
        file=sys.stderr,
    )
    return settings.changed("training", kernels="torch")


def chosen_env(saved: EnvSettings, env_id: str | None) -> EnvSettings:
    """Keeps the options if both environments belong to one family."""
    if env_id is None:
        return saved
    name, family = canonical(env_id), family_of(env_id)
    if name == saved.id:
        return saved
    return family.with_id(saved if family is family_of(saved.id) else EnvSettings(), name)


def chosen_levels(text: str, env: EnvSettings) -> list[str]:
    level_sets = list(dict.fromkeys(text.split(",")))
    for level_set in level_sets:
        if level_set not in LEVEL_SETS:
            raise InputError(
                f"--levels {text}: {level_set!r} is not known; expected train, test, or train,test"
            )
    if "test" in level_sets and not has_unseen_levels(env):
        why = (
            "the policy was trained on all levels (env.num_levels 0, or exploration's one), so none is unseen"
            if family_of(env.id).HAS_LEVELS
            else f"{env.id} has no levels"
        )
        raise InputError(f"--levels {text}: {why}; leave --levels out")
    return level_sets
