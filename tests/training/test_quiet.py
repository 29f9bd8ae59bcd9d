"""What orbax's threads leave behind when a save or a restore fails does not reach the terminal; all else does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEFT_BEHIND = {
    "a coroutine that nobody ran": "async def read(): pass\nread()",
    "at the end of the program": "async def read(): pass\nleft = read()",
    "a logged traceback": "import logging\nlogging.getLogger('asyncio').error('Task was destroyed')",
}


def said(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stderr


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_what_is_left_behind_is_not_told(name: str) -> None:
    code = LEFT_BEHIND[name]
    assert said(code) != ""  # the twin
    assert said(f"from training.quiet import quieten\nquieten()\n{code}") == ""


def test_other_warnings_are_told() -> None:
    code = "import warnings\nfrom training.quiet import quieten\nquieten()\nwarnings.warn('overflow', RuntimeWarning)"
    assert "overflow" in said(code)
