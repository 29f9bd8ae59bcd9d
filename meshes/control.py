"""A launched process asks its launcher to be slowed down, once it has compiled. No launcher, nothing to ask."""

import os

VARIABLE = "LOPSIDED_CONTROL"


def throttle(on: bool) -> None:
    """Ask for the CPU share of the cluster file (`on`), or for whole cores again, and wait until it is so.

    Does nothing in a process that no launcher started.

    Raises:
        ConnectionError: the launcher is gone.
    """
    number = os.environ.get(VARIABLE)
    if number is None:
        return
    os.write(int(number), b"on\n" if on else b"off\n")
    if os.read(int(number), 16) != b"ok\n":
        raise ConnectionError("the launcher is gone: start the run again")
