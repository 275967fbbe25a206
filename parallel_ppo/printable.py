"""Text for a terminal: untrusted text (errors, paths, settings of others), counts and lists."""

import traceback
from collections.abc import Sequence

CONTROLS = {
    number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\n\t"
}


def printable(text: str) -> str:
    """Escapes control characters except newlines and tabs, so that text cannot move the cursor."""
    return text.translate(CONTROLS)


def one_line(text: object, most: int = 300) -> str:
    """Untrusted text as one printable line of limited length."""
    shown = " ".join(printable(str(text).encode("utf-8", "replace").decode()).split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def described(error: BaseException) -> str:
    """Its text, or its place if it has none, such as a failed assertion."""
    name, text, frames = type(error).__name__, one_line(error), traceback.extract_tb(error.__traceback__)
    if not text and frames:
        return f"{name} in {frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno}"
    return f"{name}: {text}" if text else name


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], last: str) -> str:
    """`a, b and c`, with `last` as the last conjunction."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
