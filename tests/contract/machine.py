"""What the bits of a run depend on besides its configuration, its seed and this project."""

import importlib.metadata
import re
from pathlib import Path


def this_machine() -> dict[str, str]:
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    parts = [f"{name} {found[name]}" for name in ("cpu family", "model", "stepping") if name in found]
    return {
        "cpu": " ".join([found.get("model name", "unknown"), *parts]),
        **{package: importlib.metadata.version(package) for package in ("torch", "numpy", "gymnasium")},
    }
