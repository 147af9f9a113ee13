"""From what the user calls MODEL to a path on this machine, fetching the model when it is not here yet.

MODEL is a known name (`smollm2-135m`), a GGUF file, a Hugging Face folder, the name of a drafter of the
package (`smollm2-135m/eagle3`), a hub id (`org/name`), or one GGUF file of a hub repository
(`org/name:file.gguf`): the first of these that there is.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import warnings
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path

from forerun.errors import InputError
from forerun.files import no_room
from forerun.models.known import KNOWN, KnownModel, cached_path
from forerun.models.shipped import drafting_file, shipped, shipped_drafts, shipped_heads
from forerun.weights.hf_folder import HEAD_FILES, INDEX, PICKLED, SINGLE, shard_names

DEFAULT_MODEL = "smollm2-135m"

FOLDER_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
]
PATIENCE = 10.0  # seconds for the hub to answer what a repository has
_HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:\\]+\.gguf))?", re.ASCII
)


class Sought(Enum):
    """What a name must stand for, as it is called."""

    MODEL = "model"
    DRAFT = "draft model"
    HEAD = "drafting head"
    ANY = "model or drafting head"

    @property
    def may_be_head(self) -> bool:
        """Whether it may be in the older files that only heads are read from."""
        return self in (Sought.HEAD, Sought.ANY)


def resolve_model(model: str, sought: Sought = Sought.MODEL) -> Path:
    """The file or folder that `model` names, fetched first if it is not on this machine.

    What was fetched before is used without asking the network. InputError, one line, when there is no such
    model or it cannot be fetched.
    """
    return _resolve(model, sought, refresh=False)


def pull_model(model: str) -> Path:
    """As `resolve_model`, but a hub id is compared with the hub, and what changed there is fetched."""
    return _resolve(model, Sought.MODEL, refresh=True)


def _resolve(model: str, sought: Sought, refresh: bool) -> Path:
    if model in KNOWN and sought is not Sought.HEAD:
        return cached_path(KNOWN[model]) or _fetched(KNOWN[model])
    path = _local(model)
    if path is not None:
        return path
    beside = [name for name in _of_the_package(sought) if name.split("/")[0] == model.split("/")[0]]
    if beside:
        what = sought.value if sought in (Sought.DRAFT, Sought.HEAD) else "drafter"
        raise InputError(f"the package has no {what} {model!r}; it has {', '.join(beside)}")
    return _from_hub(*_hub_id(model, sought), refresh, sought.may_be_head)


def _of_the_package(sought: Sought) -> list[str]:
    """The package's drafters that may be meant, by name."""
    heads = [] if sought is Sought.DRAFT else shipped_heads()
    return heads if sought is Sought.HEAD else sorted(heads + shipped_drafts())


def _fetched(model: KnownModel) -> Path:
    from forerun.models.fetching import fetch  # what it needs takes a while to import

    return fetch(model)


def public_name(model: str) -> str | None:
    """What other programs find the model by, a hub id or a folder; None for what they do not read (GGUF)."""
    if model in KNOWN:
        return KNOWN[model].made_from
    path = _local(model)
    if path is not None:
        return str(path.resolve()) if path.is_dir() else None
    repo, file = _hub_id(model)
    return repo if file is None else None


def find_model(model: str, sought: Sought = Sought.MODEL) -> Path | None:
    """As `resolve_model`, but of the hub only what is in its cache: None for what was not fetched."""
    if model in KNOWN or _local(model):
        return _resolve(model, sought, refresh=False)
    return _cached(*_hub_id(model, sought))


def pull_config(model: str) -> Path:
    """The folder with the configuration of a hub id, without its weights. InputError as for `pull_model`."""
    repo, file = _hub_id(model)
    if file is not None:
        raise InputError(f"{model!r} is not on this machine; fetch it first: forerun pull {model}")
    import huggingface_hub

    try:
        wanted = ["config.json", "generation_config.json"]
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=wanted))
    except Exception as error:  # as in `_download`
        raise _hub_fault(repo, error) from error


def _hub_id(model: str, sought: Sought = Sought.MODEL) -> tuple[str, str | None]:
    """Repository and file of a hub id. InputError if it is none."""
    match = _HUB_ID.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith((".gguf", ".safetensors", ".bin"))):
        names = [] if sought is Sought.HEAD else list(KNOWN)
        names += [] if sought is Sought.MODEL else _of_the_package(sought)
        raise InputError(
            f"there is no {sought.value} {model!r}: name a GGUF file, a Hugging Face folder, a hub id"
            f" (org/name or org/name:file.gguf), or {', '.join(names)}"
        )
    return match["repo"], match["file"]


def _local(model: str) -> Path | None:
    """The path that `model` is (of a draft model's folder, its file), or else the package's drafter of this
    name; None if there is neither."""
    try:
        path = Path(os.path.expanduser(model))  # before Path takes the ./ off ./~name
        if model and path.exists():
            return drafting_file(path)
    except (OSError, ValueError):  # a name too long, a null byte
        return None
    found = shipped(model)
    return found and drafting_file(found)


def _from_hub(repo: str, file: str | None, refresh: bool, head: bool) -> Path:
    """The snapshot folder of a repository, or one GGUF file of it, in huggingface_hub's own cache."""
    import logging

    # one line is all that a user sees of a failure
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    cached = _cached(repo, file, head)
    if cached is not None and not refresh:
        return cached
    try:
        return _download(repo, file, head)
    except _Unreachable:
        if cached is not None:
            return cached
        raise


class _Unreachable(InputError):
    """The hub did not answer."""


def _cached(repo: str, file: str | None, head: bool = False) -> Path | None:
    """What the cache holds, if it is whole: an interrupted download leaves a folder that is not."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except (HFValidationError, OSError) as error:
        raise InputError(f"cannot look up {repo!r} in the hub's cache: {error}") from error
    if file is not None:
        return folder / file if (folder / file).exists() else None
    return folder if _is_whole(folder, head) else None


def _download(repo: str, file: str | None, head: bool) -> Path:
    """Ask the hub what the repository has, and fetch what of it is needed and not in the cache yet."""
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # re-exported

    if not sys.stderr.isatty():
        disable_progress_bars()
    size = 0
    try:
        info = huggingface_hub.HfApi().model_info(repo, timeout=PATIENCE, files_metadata=True)
        there = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
        wanted = _wanted(repo, file, list(there), head)
        size = sum(there[name] for name in there if any(fnmatch(name, pattern) for pattern in wanted))
        with warnings.catch_warnings():  # of a disk with too little room: a failure is told below
            warnings.simplefilter("ignore")
            folder = Path(huggingface_hub.snapshot_download(repo, allow_patterns=wanted))
    except InputError:
        raise
    except Exception as error:  # of the library, of its HTTP client and of the system
        raise _hub_fault(repo, error, size) from error
    return folder if file is None else folder / file


def _wanted(repo: str, file: str | None, names: list[str], head: bool) -> list[str]:
    """The patterns of the files to fetch, out of the repository's. InputError if it lacks what is needed."""
    if file is not None:
        if file not in names:
            raise InputError(f"{repo!r} on the hub has no file {file!r}; {_ggufs(repo, names)}")
        return [glob.escape(file)]
    if "config.json" in names and {SINGLE, INDEX} & set(names):
        return FOLDER_FILES
    for name in _head_files(head):
        if "config.json" in names and name in names:
            return ["config.json", name]
    raise InputError(f"{repo!r} on the hub has no config.json with safetensors; {_ggufs(repo, names)}")


def _head_files(head: bool) -> tuple[str, ...]:
    """What only drafting heads are in, and what they may be in too where one is asked for."""
    return (*HEAD_FILES, PICKLED) if head else HEAD_FILES


def _ggufs(repo: str, names: list[str]) -> str:
    found = [name for name in names if name.endswith(".gguf")]
    if not found:
        return "and it has no GGUF file; name another"
    return f"name one of its GGUF files, such as {repo}:{found[0]}"


def _is_whole(folder: Path, head: bool) -> bool:
    """Whether a snapshot holds a configuration and all the weights it should."""
    if not (folder / "config.json").exists():
        return False
    if (folder / SINGLE).exists() or any((folder / name).exists() for name in _head_files(head)):
        return True
    return (folder / INDEX).exists() and all(
        (folder / name).exists() for name in set(shard_names(folder).values())
    )


def _hub_fault(repo: str, error: Exception, size: int = 0) -> InputError:
    """One line for what huggingface_hub raised while it fetched so many bytes (0: nobody knows)."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why it had to be there
    if full := no_room(error):
        takes = f", where it takes about {size // 1_000_000 + 1} MB" if size else ""
        return InputError(
            f"{full} while fetching {repo!r} into {constants.HF_HUB_CACHE}{takes}; make room, or set"
            " HF_HUB_CACHE to a folder on another disk"
        )
    if isinstance(error, GatedRepoError):
        return InputError(
            f"{repo!r} is gated: accept its terms on huggingface.co, then log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return InputError(
            f"the hub has no model {repo!r}, or it is private: check the name, or `hf auth login`"
        )
    if isinstance(error, HFValidationError):
        return InputError(f"{repo!r} is not a valid hub id: {error}")
    if isinstance(error, OfflineModeIsEnabled):
        return _Unreachable(f"{repo!r} is not in the hub's cache and HF_HUB_OFFLINE is set; unset it")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return _Unreachable(
        f"{repo!r} is not in the hub's cache and cannot be fetched ({reason}); check the network, or"
        " name a local file or folder"
    )
