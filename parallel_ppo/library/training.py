"""`parallel_ppo.train`: the training command from Python.

The trainer runs in a process of its own, so that nothing the caller did to torch can change what is
learned, and no signal handler, thread or `__main__` guard is needed here. `stop_when` and `callbacks` run
in the caller, between two iterations.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_ppo import exits
from parallel_ppo.child import child, with_fixed_hash_seed
from parallel_ppo.exits import ExitCode, InputError, RunError
from parallel_ppo.library.notebook import make_display
from parallel_ppo.library.run import Run
from parallel_ppo.library.words import in_python
from parallel_ppo.records.display import Clock
from parallel_ppo.settings.layers import nearest
from parallel_ppo.settings.schema import Settings, shown_default
from parallel_ppo.training.callbacks import Progress, Wishes, failure, progress_of, stop_reason

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from parallel_ppo.library.keywords import Keywords

PATIENCE = 60.0  # seconds that an interrupted trainer has to save
ELSEWHERE = (
    "which the trainer's processes never run; put it in a module of its own (in a notebook: %%writefile"
)


def train(
    env: str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    sequential: bool = False,
    stop_when: Callable[[Progress], Any] | None = None,
    callbacks: Sequence[Callable[[Progress], Any] | str] = (),
    trust: bool = False,
    quiet: bool = False,
    **named: Unpack[Keywords],
) -> Run:
    """Trains until the budget is spent or a callback stops it, and returns the run.

    Settings are given by name (`seed=1, total_timesteps=100_000, num_workers=2`) or with their section
    (`settings={"training.gamma": 0.99}`, or nested as in YAML). They replace those of `config`, which replace
    the shipped ones. `stop_when` and `callbacks` get a `Progress` after each iteration; True or a text stops
    the run. Errors are `RunError`: `InputError`, `CallbackError` and others.

    Settings by name:
    """
    values = {**_flat(settings or {}), **{_key(name): value for name, value in named.items()}}
    if env is not None:
        values["env.id"] = _env(env)
    if isinstance(values.get("training.policy"), type):
        values["training.policy"] = _path("training.policy", values["training.policy"])
    for key in ("training.learning_rate", "training.clip_range"):
        if callable(values.get(key)):
            values[f"{key}_schedule"] = _path(key, values.pop(key))
    if isinstance(values.get("env.wrappers"), list | tuple):
        wrappers = values["env.wrappers"]
        values["env.wrappers"] = [_path("env.wrappers", w) if callable(w) else w for w in wrappers]
    _check_callable(stop_when, callbacks)
    if any(isinstance(callback, str) for callback in callbacks):
        values["logging.callbacks"] = [callback for callback in callbacks if isinstance(callback, str)]
    _check_importable(values)
    flags = [f"--set={key}={_json(key, value)}" for key, value in values.items()]
    for flag, place in (("--config", config), ("--output-dir", output_dir), ("--resume", resume)):
        if place is not None:
            flags += [flag, os.path.expanduser(place)]
    flags += [flag for flag, given in (("--trust-checkpoint", trust), ("--quiet", quiet)) if given]
    watchers = [("stop_when", stop_when)] if stop_when else []
    watchers += [(_name(callback), callback) for callback in callbacks if not isinstance(callback, str)]
    try:
        return Session("sequential" if sequential else "parallel", flags, watchers, quiet).run()
    except InputError as error:
        raise _explained(error, values.get("env.id")) from error.__cause__


def _described() -> Iterator[str]:
    for section in Settings.model_fields.values():
        for name, field in section.annotation.model_fields.items():  # type: ignore[union-attr]
            yield f"        {name} (default: {shown_default(field)}): {field.description}"


train.__doc__ = f"{train.__doc__}\n" + "\n".join(_described())

# --- what is given ------------------------------------------------------------------------------------------


def _key(name: str) -> str:
    """`seed` -> training.seed; where two sections have a name, the first."""
    fields = Settings.model_fields.items()
    sections = {name: field.annotation.model_fields for name, field in fields}  # type: ignore[union-attr]
    for section, keys in sections.items():
        if name in keys:
            return f"{section}.{name}"
    known = [key for keys in sections.values() for key in keys]
    raise InputError(f"{name}: no such setting{nearest(name, known) if name else ''}")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections as in YAML, `{"training": {"gamma": 0.99}}`, or keys with their section."""
    if not isinstance(settings, Mapping):
        raise InputError(f"settings: got {settings!r:.80}; expected a dictionary")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        is_section = key in Settings.model_fields and isinstance(value, Mapping)
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if is_section else {key: value}
    return flat


def _check_callable(stop_when: Any, callbacks: Any) -> None:
    if stop_when is not None and not callable(stop_when):
        raise InputError(f"stop_when: got {stop_when!r:.80}; expected a function of the progress")
    if not isinstance(callbacks, list | tuple) or not all(
        callable(c) or isinstance(c, str) for c in callbacks
    ):
        raise InputError(
            f"callbacks: got {callbacks!r:.80}; expected a list of functions or 'module:function'"
        )


def _check_importable(values: Mapping[str, Any]) -> None:
    """`__main__` is another module in every process."""
    for key in ("env.id", "training.policy", "logging.callbacks"):
        given = values.get(key)
        for name in given if isinstance(given, list) else [given]:
            if isinstance(name, str) and name.startswith("__main__:"):
                raise InputError(
                    f"{key}: {name!r} is in the running script or notebook, {ELSEWHERE} my_module.py) and give"
                    f" 'my_module:{name.partition(':')[2]}'"
                )


def _env(env: Any) -> str:
    if callable(env):
        return _path("env", env)
    if not isinstance(env, str):
        raise InputError(
            f"env: got {env!r:.80}; expected a name such as 'CartPole-v1', a class, a function that makes an"
            " environment, or 'my_module:MyEnv'"
        )
    return env


def _path(key: str, named: Any) -> str:
    """A class or function as the setting that other processes can import."""
    name = getattr(named, "__qualname__", None)
    if name is None:
        raise InputError(f"{key}: got {named!r:.80}; expected a class or a function")
    if name.endswith("<lambda>"):
        raise InputError(f"{key}: got a lambda, which has no name; use a function of a module")
    if named.__module__ == "__main__":
        raise InputError(
            f"{key}: {name} is defined in the running script or notebook, {ELSEWHERE} my_module.py) and import"
            " it from there"
        )
    if "." in name:
        raise InputError(
            f"{key}: {name} is defined inside another class or function; put it at the top of its module"
        )
    return f"{named.__module__}:{name}"


def _json(key: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError, AttributeError):
        raise InputError(
            f"{key}: got {value!r:.80}; expected plain values (numbers, text, lists, dictionaries)"
        ) from None


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays, and paths."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value.tolist()


def _name(callback: Any) -> str:
    return getattr(callback, "__qualname__", type(callback).__qualname__)


def _explained(error: InputError, env_id: Any) -> InputError:
    """Names that are known in the caller alone."""
    known = getattr(sys.modules.get("gymnasium"), "registry", {})
    if env_id in known and f"no environment is called {env_id!r}" in str(error):
        return InputError(
            f"env.id: {env_id!r} is registered in the running script or notebook, {ELSEWHERE} my_envs.py) "
            f"that registers it, and give 'my_envs:{env_id}'"
        )
    return error


# --- the conversation ---------------------------------------------------------------------------------------


class Session:
    def __init__(
        self, kind: str, flags: list[str], watchers: list[tuple[str, Callable[[Progress], Any]]], quiet: bool
    ) -> None:
        self.kind, self.flags, self.watchers = kind, flags, watchers
        self.display = make_display(quiet)
        self.clock = Clock(0.0, 0.0, None)
        self.directory: Path | None = None
        self.code: int | None = None
        self.error: RunError | None = None
        self.cause: BaseException | None = None

    def run(self) -> Run:
        ours, theirs = socket.socketpair()
        with theirs:
            trainer = subprocess.Popen(
                [*child("parallel_ppo.library.own_process"), str(theirs.fileno()), self.kind, *self.flags],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env=with_fixed_hash_seed(),
            )  # fmt: skip
        try:
            with Connection(ours.detach()) as channel:
                self._listen(channel)
            trainer.wait()
        except BaseException:  # Ctrl-C, or a mistake of ours: the channel is closed, and the trainer saves
            trainer.send_signal(signal.SIGINT)
            _wait(trainer)
            raise
        finally:
            self.display.close()
        return self._result(trainer.returncode)

    def _listen(self, channel: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                (record,) = self._await(channel, "ask")
                channel.send_bytes(json.dumps(self._answer(record, channel)).encode())

    def _await(self, channel: Connection, wanted: str) -> list[Any]:
        """The next message of this kind; others are shown."""
        while True:
            kind, *values = json.loads(channel.recv_bytes())
            if kind == wanted:
                return values
            getattr(self, f"_on_{kind}", getattr(self.display, kind, None))(*values)  # type: ignore[misc]

    def _answer(self, record: dict[str, Any], channel: Connection) -> dict[str, Any]:
        """The result of the caller's callbacks. After an exception the run is saved, then it is raised."""
        assert self.directory is not None

        def write_policy() -> Path:
            channel.send_bytes(json.dumps({"wish": "policy"}).encode())
            return Path(self._await(channel, "policy")[0])

        wishes = Wishes(write_policy)
        answer: dict[str, Any] = {}
        for name, call in self.watchers:
            try:
                reason = stop_reason(name, call(progress_of(record, self.directory, wishes)))
            except Exception as error:
                self.cause = error
                answer["failure"] = str(failure(name, record["iteration"], error, self.directory))
                break
            if reason is not None:
                answer["stop"] = reason
                break
        return answer | {"numbers": wishes.numbers, "save": wishes.save}

    def _on_start(self, header: list[str]) -> None:
        self.display.start(header, lambda: self.clock)

    def _on_show(self, record: dict[str, Any], *clock: Any) -> None:
        self.clock = Clock(*clock)
        self.display.show(record)

    def _on_text(self, name: str, text: str) -> None:
        stream = getattr(sys, name)
        if stream is not None:  # a program without a terminal may have none
            stream.write(text)

    def _on_directory(self, directory: str) -> None:
        self.directory = Path(directory).absolute()

    def _on_end(self, code: int) -> None:
        self.code = code

    def _on_error(self, name: str, line: str, details: str) -> None:
        kind = getattr(exits, name, RunError)
        self.error = kind.__new__(kind)
        Exception.__init__(self.error, in_python(line))
        self.error.details = details
        self.error.__cause__ = RuntimeError(f"in the trainer's process:\n{details}") if details else None

    def _result(self, status: int) -> Run:
        if self.cause is not None:
            raise self.cause  # of the caller's own callback: unchanged, for `except` in the caller
        if self.error is not None:
            raise self.error
        if self.code == ExitCode.DONE and self.directory is not None:
            return Run(self.directory)
        how = "was stopped and saved" if self.code else f"ended unexpectedly (status {status})"
        after = f"; continue with resume={str(self.directory)!r}" if self.directory else ""
        stopped = RunError(f"the trainer {how}{after}")
        stopped.code = ExitCode(self.code) if self.code else ExitCode.RESTARTS
        raise stopped


def _wait(trainer: subprocess.Popen) -> None:
    try:
        trainer.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        trainer.kill()
        trainer.wait()
