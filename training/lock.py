"""One run at a time writes in a directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from meshes.errors import UsageError


@contextmanager
def held(*directories: Path) -> Iterator[None]:
    """Make directories and hold them while a run writes there; a process that dies lets go of them.

    Raises:
        UsageError: one cannot be made, or another run holds it.
    """
    with ExitStack() as stack:
        for directory in dict.fromkeys(path.resolve() for path in directories):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot make {directory}: {error.strerror}: name another one") from None
            handle = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another run is writing in {directory}: wait for it, or name another one") from None
        yield
