"""What ends a report command: something the user can put right, or a training run that failed under it."""


class InputError(ValueError):
    """One line that names the thing, says what was expected, and what to do about it."""


class TrainerFailed(Exception):
    """A trainer that was started ended with `code`; the line says where its output is."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
