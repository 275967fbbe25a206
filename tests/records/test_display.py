"""Text from outside on a terminal: shown as it is, never obeyed."""

import io

from rich.console import Console

from parallel_ppo.exits import InputError
from parallel_ppo.records.display import LiveDisplay, PlainDisplay

OUTSIDE = "[/data/x] not found in runs/[test] :warning: \x1b]0;title\x07"


def test_no_text_from_outside_is_markup_or_an_escape_sequence() -> None:
    for is_terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, highlight=False, width=200)
        display = LiveDisplay(console) if is_terminal else PlainDisplay(console, quiet=False)
        display.start([OUTSIDE], lambda: (0.0, None))
        display.note(OUTSIDE)
        display.warn(OUTSIDE)
        display.close()
        shown = file.getvalue()
        assert shown.count("[/data/x] not found in runs/[test] :warning: \\x1b]0;title\\x07") == 3
        assert "\x1b]0" not in shown


def test_an_error_that_quotes_a_stranger_starts_no_escape_sequence() -> None:
    assert str(InputError("a\x1b[2Jb\r\x9b31m\nsecond line")) == "a\\x1b[2Jb\\x0d\\x9b31m\nsecond line"


def test_the_live_line_shows_how_far_the_first_collect_is() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    display = LiveDisplay(console)
    display.watch(lambda: 0.25)
    display.phase("collect")
    console.print(display._render())
    display.phase("update")
    console.print(display._render())
    assert "collect 25% 0s" in file.getvalue() and "update 0s" in file.getvalue()
