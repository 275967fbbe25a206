"""A run that was trained, on the disk."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_ppo.exits import InputError
from parallel_ppo.storage.files import Damaged, read_regular
from parallel_ppo.storage.json_lines import read_records

if TYPE_CHECKING:
    import pandas

MAX_SUMMARY = 1 << 20


@dataclass(frozen=True)
class Run:
    directory: Path

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "directory", Path(directory).expanduser().absolute())

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def summary(self) -> dict[str, Any]:
        """How it ended: `policy_sha256`, `final_return_mean`, `stop_reason`, ... (docs/metrics.md)."""
        path = self.directory / "summary.json"
        try:
            return dict(json.loads(read_regular(path, MAX_SUMMARY)))
        except Damaged as problem:
            raise InputError(str(problem)) from None
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path}: is not the summary of a run") from None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary for each iteration (docs/metrics.md)."""
        return list(read_records(self.directory / "metrics.jsonl"))

    def frame(self) -> "pandas.DataFrame":
        """The metrics as a table; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise InputError('frame() needs pandas: pip install "parallel_ppo[pandas]"') from None

        metrics = self.metrics
        if not metrics:
            raise InputError(f"{self.directory}: has no finished iteration; expected the directory of a run")
        return pandas.DataFrame(metrics).set_index("iteration")
