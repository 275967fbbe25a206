"""The live line and the plain lines: complete, of one line, and safe with text from outside."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from parallel_ppo.exits import InputError
from parallel_ppo.records import display as displays
from parallel_ppo.records.display import Clock, LiveDisplay, PlainDisplay, Status

OUTSIDE = "[/data/x] not found in runs/[test] :warning: \x1b]0;title\x07"
RECORD: dict[str, Any] = {
    "steps_global": 120_000, "fps": 1234.4, "episode_return_mean": 12.345, "world_size": 1,
    "approx_kl": 0.01234, "entropy": 1.5, "rss_mb": 900.0,
    "eval_train_return": 7.5, "eval_test_return": 3.25,
}  # fmt: skip


class Collecting:
    steps = 1000

    def share(self, phase: str) -> float | None:
        return 0.25 if phase == "collect" else None


def status(record: dict[str, Any] | None = None, **options: Any) -> Status:
    made = Status(**options)
    made.record, made.phases = record, Collecting()
    made.clock = lambda: Clock(83.0, 0.12, 605.0)
    return made


def test_no_text_from_outside_is_markup_or_an_escape_sequence() -> None:
    for is_terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, highlight=False, width=200)
        display = LiveDisplay(console) if is_terminal else PlainDisplay(file, file)
        display.start([OUTSIDE], lambda: Clock(0.0, 0.0, None))
        display.note(OUTSIDE)
        display.warn(OUTSIDE)
        display.close()
        shown = file.getvalue()
        assert shown.count("[/data/x] not found in runs/[test] :warning: \\x1b]0;title\\x07") == 3
        assert "\x1b]0" not in shown


def test_a_quoted_name_in_an_error_is_no_escape_sequence() -> None:
    assert str(InputError("a\x1b[2Jb\r\x9b31m\nsecond line")) == "a\\x1b[2Jb\\x0d\\x9b31m second line"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (150, " 12%  elapsed 0:01:23  left 0:10:05  step 120,000  1,234 steps/s  return 12.35  train 7.50"
         "  test 3.25  KL 0.0123  entropy 1.500  memory 900 MB"),
        (80, " 12%  elapsed 0:01:23  left 0:10:05  step 120,000  1,234 steps/s  return 12.35"),
        (60, " 12%  left 0:10:05  1,234 steps/s  return 12.35"),
        (30, " 12%  return 12.35"),
    ],
)  # fmt: skip
def test_a_narrow_terminal_drops_items(width: int, line: str) -> None:
    shown = status(RECORD)
    shown.enter("learn")
    found = "  ".join(item.text for item in shown.fitted(width))
    assert found.removesuffix("  learn") == line and len(found) <= width


def test_a_narrow_terminal_drops_the_end_of_the_header() -> None:
    header = "CartPole-v1  ppo, mlp  seed 3  2 workers  -> runs/" + 40 * "x"
    for width, line in ((100, header), (60, "CartPole-v1  ppo, mlp  seed 3  2 workers")):
        file = io.StringIO()
        display = LiveDisplay(Console(file=file, force_terminal=True, no_color=True, width=width))
        display.start([header], lambda: Clock(0.0, 0.0, None))
        display.close()
        assert file.getvalue().splitlines()[0].strip() == line


def test_the_last_evaluation_stays_until_the_next() -> None:
    shown = status()
    shown.show(RECORD)
    shown.show({key: value for key, value in RECORD.items() if not key.startswith("eval_")})
    assert "train 7.50  test 3.25" in shown.line()


def test_verbose_shows_details_in_a_narrow_terminal() -> None:
    few = {key: value for key, value in RECORD.items() if not key.startswith("eval_")}
    assert "KL" in [item.label for item in status(few, verbose=True).fitted(100)]
    assert "KL" not in [item.label for item in status(few).fitted(100)]


def test_the_first_iteration_shows_its_speed_and_share() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, no_color=True, width=100)
    display = LiveDisplay(console)
    display.watch(Collecting())
    display.phase("collect")
    display.status.phase_since -= 10.0
    console.print(display._render())
    display.phase("update")
    console.print(display._render())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert "first iteration: collect 25%  25 steps/s" in plain
    assert "first iteration: update" in plain


def test_plain_lines_carry_a_timestamp_and_warnings_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "FIRST_LINE_AFTER", 0.01)
    out, err = io.StringIO(), io.StringIO()
    display = PlainDisplay(out, err)
    display.start(["the header"], lambda: Clock(10.0, 0.5, None))
    display.show(RECORD)
    display.thread.join(0.2)
    display.warn("a warning")
    display.close()
    header, line = out.getvalue().splitlines()
    assert header == "the header" and err.getvalue() == "warning: a warning\n"
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  50%  elapsed 0:00:10  step 120,000", line)
    assert "return 12.35" in line and "KL 0.0123" in line


def test_quiet_prints_warnings_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    display = PlainDisplay(out, err, quiet=True)
    display.start(["the header"], lambda: Clock(0.0, 0.0, None))
    display.note("a note")
    display.warn("a warning")
    display.close()
    assert out.getvalue() == "" and err.getvalue() == "warning: a warning\n"


def test_a_program_without_standard_output_can_show_progress() -> None:
    display = PlainDisplay(None, None)
    display.start(["the header"], lambda: Clock(0.0, 0.0, None))
    display.warn("a warning")
    display.close()
