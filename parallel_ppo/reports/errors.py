"""What ends a report command besides the user's input: a training run that failed under it."""

from parallel_ppo.exits import RunError


class TrainerFailed(RunError):
    """A trainer that was started ended with `code`; the line says where its output is."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code
        self.code = code if code > 0 else 128 - code
