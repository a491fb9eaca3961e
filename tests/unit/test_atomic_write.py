"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.atomic_write import write_atomically


def failing() -> Iterator[str]:
    yield "half"
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("replace", [True, False])
def test_a_failure_leaves_no_new_file(replace: bool, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, failing(), replace=replace)
    assert raised.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, failing())
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_the_mode_of_the_file_and_a_link_to_it_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "plan", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o604)
    link.symlink_to("plan")
    write_atomically(link, ["new"])
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode), link.is_symlink()) == ("new", 0o604, True)


def test_an_existing_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_atomically(path, ["old"], replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, ["new"], replace=False)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, ["text"])
    reader.join(20)
    assert (found, stat.S_ISFIFO(pipe.stat().st_mode)) == (["text"], True)
