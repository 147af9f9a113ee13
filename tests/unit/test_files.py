"""Files are written whole or not at all, and what goes wrong names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.errors import InputError
from forerun.files import check_writable, explained, write_whole


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "b"
    link.symlink_to(file)
    check_writable(link)
    assert not file.exists()
    write_whole(link, "é", b"\xff", memoryview(b"\0"))
    assert link.is_symlink()
    assert file.read_bytes() == b"\xc3\xa9\xff\0"
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "a" * 100_000 + "\ud800")
    assert file.stat().st_size == 4
    write_whole(file, "é " + os.fsdecode(b"name \xff"))
    assert file.read_bytes() == b"\xc3\xa9 name \xff"
    assert sorted(tmp_path.iterdir()) == [file, link]
    write_whole(Path("/dev/null"), "a")
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    (tmp_path / f".forerun-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(InputError, match=f"cannot write {file}: No space left on device"):
        write_whole(file, "after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="cannot write /dev/full: No space left on device"):
        write_whole(Path("/dev/full"), "a")
    with pytest.raises(InputError, match=r"cannot write a.txt: No space"), explained(Path("a.txt")):
        raise OSError(28, "No space left on device")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for fails in (check_writable, write_whole):
        with pytest.raises(InputError, match=r"cannot write .*/none/a: No such file"):
            fails(tmp_path / "none/a")
