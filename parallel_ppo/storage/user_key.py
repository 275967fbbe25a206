"""A secret of this user: what it signed, this user wrote. Native readers of environment states trust
their input.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from parallel_ppo.exits import InputError
from parallel_ppo.storage.files import Damaged, read_regular

VARIABLE = "PARALLEL_PPO_KEY_FILE"
KEY_BYTES = 32  # at least: a shorter one could be guessed
MAX_KEY_BYTES = 4096


def signature(*pieces: bytes | memoryview) -> str | None:
    """Of the pieces one behind the other. None where no key can be kept."""
    try:
        made = hmac.new(_user_key(), digestmod=hashlib.sha256)
        for piece in pieces:
            made.update(piece)
        return made.hexdigest()
    except (OSError, RuntimeError, Damaged):  # RuntimeError: this user has no home
        return None


def is_signed(given: str, *pieces: bytes | memoryview) -> bool:
    """Whether this user signed these pieces."""
    own = signature(*pieces)
    return own is not None and hmac.compare_digest(own.encode(), given.encode(errors="replace"))


def prepare(note: Callable[[str], None], warn: Callable[[str], None]) -> None:
    """Makes the key if there is none yet; says so, and says when there can be none."""
    named = os.environ.get(VARIABLE)
    advice = f"set {VARIABLE} to a file that every start of this run can read"
    try:
        is_new = not key_file().exists()
        _user_key()
    except (OSError, RuntimeError, Damaged) as error:
        if named:
            raise InputError(f"{VARIABLE}: {named} cannot be used as a key ({error})") from None
        warn(
            f"checkpoints are not signed, because no key can be kept here ({error}); --resume will need "
            f"--trust-checkpoint. Or {advice}"
        )
        return
    if key_file().stat().st_mode & 0o077:
        warn(
            f"{key_file()}: other users can read or change this signing key, and sign checkpoints with it;"
            f" use chmod 600 {key_file()}"
        )
    if is_new and not named:
        note(
            f"checkpoints are signed with a new key, {key_file()}; where home folders do not last"
            f" (containers) or differ between machines, {advice}"
        )


def key_file() -> Path:
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "parallel_ppo" / "key"


def _user_key() -> bytes:
    path = key_file()
    if not path.exists():
        _make(path)
    key = read_regular(path, MAX_KEY_BYTES)
    if len(key) < KEY_BYTES:
        raise Damaged(f"{path} has {len(key)} bytes, a key has at least {KEY_BYTES}")
    return key


def _make(path: Path) -> None:
    """Whole from the first moment; whoever else starts for the first time now ends up with the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".key-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another start was first
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
