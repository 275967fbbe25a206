"""Versions of what plays a run's environments. Another version may have other rules, levels or numbers."""

import importlib.metadata
import sys
from collections.abc import Iterable

from parallel_ppo.settings.env_families import family_of
from parallel_ppo.settings.schema import Settings


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Only of those that are installed."""
    found = {}
    for library in libraries:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def one_procgen(versions: dict[str, str]) -> dict[str, str]:
    """Python 3.10 has the original, later ones a rebuild (the mirror) with other levels."""
    mirror = versions.get("procgen-mirror")
    others = {name: version for name, version in versions.items() if name != "procgen-mirror"}
    return others if mirror is None else others | {"procgen": f"{mirror} (mirror)"}


def python_versions(settings: Settings) -> dict[str, str]:
    """Those that may decide what an environment in Python computes: Python 3.12 adds up floats otherwise, and NumPy 2
    has other types for float32 scalars.
    """
    if not family_of(settings.env.id).PLAYS_IN_PYTHON:
        return {}
    numpy = importlib.metadata.version("numpy").partition(".")[0]
    return {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "NumPy's rules": numpy}
