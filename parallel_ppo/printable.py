"""Text for a terminal: what comes from outside (errors, paths, the settings in a stranger's file), and
counted things.
"""

CONTROLS = {
    number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\n\t"
}


def printable(text: str) -> str:
    """No character that moves the cursor or starts an escape sequence; line ends and tabs stay."""
    return text.translate(CONTROLS)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
