"""When a save or a restore fails, every thread of orbax has its say; what went wrong is raised, and told once."""

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

LOGGERS = ("absl", "asyncio")


def quieten() -> None:
    """Keep what orbax's threads leave behind from the terminal; exceptions that are raised are not touched."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, functools.partial):
        sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _unraisable(before: Callable[[Any], Any], found: Any) -> None:
    """Drop what a reading or writing task has to say when its event loop has ended with an error."""
    ended = isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"
    if not (ended or inspect.iscoroutine(found.object)):
        before(found)
