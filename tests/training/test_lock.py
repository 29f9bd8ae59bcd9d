"""Two runs cannot write in one directory at a time."""

from pathlib import Path

import pytest

from meshes.errors import UsageError
from training.lock import held


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    run, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    with held(run, checkpoints), pytest.raises(UsageError, match=r"another run is writing in .*checkpoints: wait"):  # noqa: SIM117
        with held(tmp_path / "other", checkpoints):
            pass
    with held(run, checkpoints):
        assert checkpoints.is_dir()


def test_one_directory_for_both_is_held_once(tmp_path: Path) -> None:
    with held(tmp_path / "run", tmp_path / "run" / "."):
        assert (tmp_path / "run").is_dir()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    says = r"cannot make .*file.run: Not a directory: name another one"
    with pytest.raises(UsageError, match=says), held(tmp_path / "file" / "run"):
        pass
