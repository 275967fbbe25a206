"""What a user can put right."""


class InputError(ValueError):
    """One line that names the thing, says what was expected, and what to do about it."""
