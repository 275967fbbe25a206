"""Imports code that settings name as `module:name`: environments, wrappers, networks, callbacks."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from parallel_ppo.exits import InputError, is_interruption
from parallel_ppo.printable import described
from parallel_ppo.storage import working_folder


@contextlib.contextmanager
def calling_user_code(failure: str, advice: Callable[[BaseException], str] = lambda _: "") -> Iterator[None]:
    """Turns every exception of the user's code into an InputError, SystemExit included."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if is_interruption(error):
            raise
        raise InputError(f"{failure} ({described(error)}){advice(error)}") from error


def import_for(key: str, module: str, path: str) -> Any:
    """Imports the module of `path`, the value of `key`; every failure is an InputError."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file here shadows an installed package
    failure = f"{key}: cannot import {module!r} for {path!r}"
    advice = "; run from the folder that contains it, or add that folder to PYTHONPATH"
    with calling_user_code(failure, lambda _: advice), working_folder.importing(module):
        return importlib.import_module(module)


def find(key: str, path: str) -> Any:
    module, _, name = path.rpartition(":")
    if not module or not name:
        raise InputError(f"{key}: got {path!r}; expected module:Class")
    found = getattr(import_for(key, module, path), name, None)
    if found is None:
        raise InputError(f"{key}: cannot find {path!r}; the module {module!r} has no {name!r}")
    return found
