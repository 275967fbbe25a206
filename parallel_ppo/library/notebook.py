"""What a caller sees of a run: in a notebook one line that changes in place, elsewhere what the command
shows.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from parallel_ppo.records import display
from parallel_ppo.records.display import Clock, Display, PlainDisplay

INTERVAL = 0.5


def make_display(quiet: bool) -> Display:
    return NotebookDisplay() if is_notebook() and not quiet else display.make_display(quiet)


def is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookDisplay(PlainDisplay):
    def __init__(self) -> None:
        super().__init__(sys.stdout, sys.stderr)
        self.handle: Any = None
        self.last = 0.0

    def start(self, header: list[str], clock: Callable[[], Clock]) -> None:
        from IPython.display import display as show_cell

        self.status.clock = clock
        for line in header:
            self.note(line)
        self.handle = show_cell({"text/plain": "starting"}, raw=True, display_id=True)

    def show(self, record: dict[str, Any]) -> None:
        super().show(record)
        if time.monotonic() - self.last >= INTERVAL:
            self._update()

    def close(self) -> None:
        """The last line says where the run ended, however it did."""
        if self.status.record is not None:
            self._update()
        super().close()

    def _update(self) -> None:
        self.last = time.monotonic()
        self.handle.update({"text/plain": self.status.line()}, raw=True)
