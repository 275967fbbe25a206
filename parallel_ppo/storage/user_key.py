"""A secret key of this user. It signs checkpoints, because native readers of environment states trust their input."""

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
KEY_BYTES = 32  # the smallest length
MAX_KEY_BYTES = 4096


def signature(*pieces: bytes | memoryview) -> str | None:
    """HMAC of the concatenated pieces; None if there is no key."""
    try:
        made = hmac.new(_user_key(), digestmod=hashlib.sha256)
        for piece in pieces:
            made.update(piece)
        return made.hexdigest()
    except (OSError, RuntimeError, Damaged):  # RuntimeError: no home folder
        return None


def is_signed(given: str, *pieces: bytes | memoryview) -> bool:
    """True if this user signed these pieces."""
    own = signature(*pieces)
    return own is not None and hmac.compare_digest(own.encode(), given.encode(errors="replace"))


def prepare(note: Callable[[str], None], warn: Callable[[str], None]) -> None:
    """Creates the key if there is none, and reports that or the reason why there can be none."""
    named = os.environ.get(VARIABLE)
    try:
        is_new = not key_file().exists()
        _user_key()
    except (OSError, RuntimeError, Damaged) as error:
        if named:
            raise InputError(f"{VARIABLE}: {named} cannot be used as a key ({error})") from None
        warn(
            f"checkpoints are not signed, because there is no signing key ({error}); set {VARIABLE} to a"
            " persistent file, or use --trust-checkpoint with --resume"
        )
        return
    if key_file().stat().st_mode & 0o077:
        warn(f"{key_file()}: other users can read or change this signing key; run chmod 600 {key_file()}")
    if is_new and not named:
        note(
            f"created signing key {key_file()}; in containers, or with several home folders, set {VARIABLE} to a"
            " persistent file"
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
        raise Damaged(f"{path} has {len(key)} bytes, a key needs at least {KEY_BYTES}")
    return key


def _make(path: Path) -> None:
    """Creates the key atomically, so that simultaneous first starts use the same one."""
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
