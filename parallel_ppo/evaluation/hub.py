"""The Hugging Face hub, through its own library: a folder goes up, a policy comes down. Neither executes
anything. The library manages the token (`hf auth login`, or HF_TOKEN).
"""

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parallel_ppo.exits import InputError
from parallel_ppo.printable import one_line

HUB = "hub:"
MAX_BYTES = 1 << 30  # of one file
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REVISION = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}"
SECRET = re.compile(r"\bhf_\w+|(?<=://)[^/@\s]+@")


class Place(NamedTuple):
    repo: str
    revision: str | None

    def __str__(self) -> str:
        return HUB + self.repo + (f"@{self.revision}" if self.revision else "")


def parse(name: str) -> Place:
    """`user/name` or `user/name@revision`, with or without `hub:`."""
    repo, _, revision = name.removeprefix(HUB).partition("@")
    fits = re.fullmatch(f"{PART}/{PART}", repo) and (not revision or re.fullmatch(REVISION, revision))
    if not fits or ".." in name or "--" in repo or name.endswith("@"):
        raise InputError(
            f"{name[:200]!r}: is not a name on the hub; expected user/name or user/name@revision"
        )
    return Place(repo, revision or None)


def library() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError(
            'the hub needs the package huggingface_hub: pip install "parallel_ppo[hub]"'
        ) from None


def check_login() -> None:
    advice = "use `hf auth login`, or set HF_TOKEN"
    package = library()
    try:
        token = package.get_token()
    except Exception as error:
        raise InputError(
            f"push: your login to the hub cannot be read ({_one_line(error)}); {advice}"
        ) from None
    if token is None:
        raise InputError(f"push: you are not logged in to the hub; {advice}")


def upload(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """All files in one commit; its address."""
    package = library()
    api, add = package.HfApi(), package.CommitOperationAdd
    files = [add(path_in_repo=file.name, path_or_fileobj=file) for file in sorted(folder.iterdir())]
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        return str(api.create_commit(repo, files, commit_message=message).commit_url)
    except Exception as error:
        raise InputError(f"--repo {repo}: {_one_line(error)}") from None


def fetch(name: str, files: Sequence[str]) -> Path:
    """Downloads files of one commit into the hub's own cache and returns their folder; without a connection,
    the newest cached commit. The reader checks the content.
    """
    place, package = parse(name), library()
    try:
        info = package.HfApi().model_info(place.repo, revision=place.revision, files_metadata=True)
        sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    except Exception as error:
        has_answered = getattr(error, "response", None) is not None
        if has_answered or (cached := _cached(package, place, files)) is None:
            raise InputError(f"{place}: {_one_line(error)}") from None
        print(f"note: the hub cannot be reached; using cached commit {cached.name}", file=sys.stderr)
        return cached
    for file in files:
        if file not in sizes:
            raise InputError(f"{place}: holds no {file}; expected a policy that `parallel-ppo push` wrote")
        if sizes[file] is None or not 0 <= sizes[file] <= MAX_BYTES:
            raise InputError(f"{place}: {file} has {sizes[file]} bytes, expected at most {MAX_BYTES:,}")
    try:
        paths = [Path(package.hf_hub_download(place.repo, file, revision=info.sha)) for file in files]
    except Exception as error:
        raise InputError(f"{place}: {_one_line(error)}") from None
    return paths[0].parent


def _cached(package: Any, place: Place, files: Sequence[str]) -> Path | None:
    try:
        repos = package.scan_cache_dir().repos
    except Exception:  # there is none, or something else in its place
        return None
    commits = [commit for repo in repos if repo.repo_id == place.repo for commit in repo.revisions]
    fitting = [
        commit
        for commit in commits
        if place.revision in (None, "main", commit.commit_hash)
        and {file.file_name for file in commit.files}.issuperset(files)
    ]
    return max(fitting, key=lambda commit: commit.last_modified).snapshot_path if fitting else None


def _one_line(error: Exception) -> str:
    return one_line(SECRET.sub("***", f"{type(error).__name__}: {error}")).rstrip(": ")
