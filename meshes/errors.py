"""Mistakes of a user: one line that names the values and what to change."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Something the user asked for cannot be done; the message is one line and names the remedy."""


class PlanError(UsageError):
    """The cluster cannot run the workload as asked."""


def check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse keys that nobody reads.

    Args:
        given: keys found.
        known: keys that mean something.
        where: the file and table, for the message.

    Raises:
        UsageError: a key is unknown; the nearest known one is suggested.
    """
    known = sorted(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
            raise UsageError(f"{where}: unknown key {key!r}: {hint}")
