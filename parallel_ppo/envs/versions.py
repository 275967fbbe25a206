"""Versions of the libraries that contain a run's environments. Another version may have other rules or levels."""

import importlib.metadata
from collections.abc import Iterable


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
