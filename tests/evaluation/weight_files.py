"""Weights as a run would write them, without a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import numpy as safetensors

from parallel_ppo.envs.families import probe
from parallel_ppo.evaluation.policy_files import FORMAT
from parallel_ppo.policies.parameters import initialize, num_flat, views
from parallel_ppo.policies.policy import Policy
from parallel_ppo.settings.schema import Settings
from parallel_ppo.storage.user_key import signature


def contents(settings: Settings) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata, to be spoilt by tests."""
    spec = probe(settings)
    policy = Policy(settings, spec)
    flat = torch.zeros(num_flat(policy))
    initialize(policy, flat, settings.training.seed)
    arrays = {name: np.ascontiguousarray(view.numpy()) for name, view in views(policy, flat).items()}
    described = json.dumps(settings.model_dump())
    metadata = {
        "format": FORMAT,
        "settings": described,
        "signature": signature(described.encode()) or "",
        "spec": json.dumps(spec.as_json()),
        "env_steps": "256",
    }
    return arrays, metadata


def write_weights(
    path: Path, settings: Settings, /, arrays: dict[str, Any] | None = None, **metadata: str
) -> Path:
    """`arrays` replace or (None) remove some of them."""
    whole, described = contents(settings)
    kept = {name: array for name, array in (whole | (arrays or {})).items() if array is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.save(kept, described | metadata))
    return path
