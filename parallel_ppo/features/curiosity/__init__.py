"""Intrinsic rewards and the predictors behind them."""

from typing import Any

import torch

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.curiosity.icm import Icm
from parallel_ppo.features.curiosity.ngu import Ngu
from parallel_ppo.features.curiosity.rnd import Rnd
from parallel_ppo.policies.parameters import num_flat
from parallel_ppo.settings.schema import Settings

MODELS: dict[str, Any] = {"rnd": Rnd, "icm": Icm, "ngu": Ngu}


def num_predictor_parameters(settings: Settings, spec: EnvSpec) -> int:
    """They follow the policy in the flat vector."""
    with torch.device("meta"):  # counts without allocating
        return num_flat(MODELS[settings.curiosity.kind](settings, spec))
