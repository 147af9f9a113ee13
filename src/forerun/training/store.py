"""Written conversations on disk: tokens, and the target's hidden states at each, append-only.

A folder holds `about.json`, and three files that only grow:

    index.bin     one record a conversation (see RECORD)
    tokens.bin    uint32, all tokens
    features.bin  bfloat16 as uint16 [positions, taps, hidden]; n - 1 positions for a conversation of
                  n tokens, the last of which was never computed with

A conversation counts once its record is written, which comes last; after a kill the other two files are cut
to what the index says. Hidden states may be bounded: from the first conversation on that does not fit, none
are kept, for they can be computed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.files import explained, write_whole
from forerun.models.config import LARGEST_WIDTH, MOST_LAYERS
from forerun.models.fields import Fields
from forerun.training.lock import sole_writer
from forerun.weights.bfloat16 import Halves
from forerun.weights.files import read_json

RECORD = np.dtype(
    [
        ("number", "<i8"),  # of its request
        ("tokens", "<i4"),
        ("answer", "<i4"),  # tokens before the answer
        ("temperature", "<f4"),
        ("request_hash", "<u4"),
    ]
)
FILES = ("index.bin", "tokens.bin", "features.bin")


@dataclass(frozen=True)
class Conversation:
    """One conversation that was written.

    Attributes:
        number: of its request.
        tokens: int32 [n].
        answer: how many of them come before the answer.
        temperature: of the answer.
        request_hash: tells equal requests.
        features: bfloat16 as uint16 [n - 1, taps, hidden]; None where they were not kept.
    """

    number: int
    tokens: npt.NDArray[np.int32]
    answer: int
    temperature: float
    request_hash: int
    features: Halves | None


class Store:
    """A folder of conversations. Opening it to write cuts off what a kill left unfinished, and keeps other
    writers out until it is closed.

    Args:
        folder: is made when missing.
        about: what the data depends on; a folder of other data is refused.
        most_bytes: that hidden states may take.
    """

    def __init__(
        self, folder: Path, about: Mapping[str, object] | None = None, most_bytes: int | None = None
    ) -> None:
        self.folder, self._most_bytes = folder, most_bytes
        self._kept = 0
        self._files: list[BinaryIO] = []
        self._lock = ExitStack()
        self._index = np.zeros(0, RECORD)
        self._new: list[npt.NDArray[np.void]] = []
        if about is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(sole_writer(folder))
            if not (folder / "about.json").exists():
                write_whole(folder / "about.json", json.dumps(about, indent=1) + "\n")
        try:
            self.about = read_json(folder / "about.json")
            fields = Fields(self.about, str(folder))
            hidden, taps = fields.integer("hidden_size", 1, LARGEST_WIDTH), fields.get("taps")
            if not isinstance(taps, list) or any(
                type(t) is not int or not 0 <= t <= MOST_LAYERS for t in taps
            ):
                raise fields.fault("taps", f"is {taps!r}, no list of layers")
        except InputError:
            raise InputError(
                f"{folder} is no folder of training data; name another, or an empty one"
            ) from None
        for key in about or ():
            if self.about.get(key) != (about or {})[key]:
                raise InputError(
                    f"{folder} holds data with {key} {self.about.get(key)!r}, not {(about or {})[key]!r}; "
                    "name another folder"
                )
        self.taps = tuple(taps)
        self.hidden = hidden
        self._recover(writable=about is not None)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def tokens_written(self) -> int:
        return int(self.index["tokens"].sum())

    @property
    def highest_token(self) -> int:
        """Of all tokens; -1 where there are none."""
        return int(self._tokens.max(initial=0)) if len(self) else -1

    @property
    def is_whole(self) -> bool:
        """Whether it has the hidden states of all its conversations."""
        return self._kept == len(self)

    @property
    def position_bytes(self) -> int:
        """Bytes that the hidden states of a position take."""
        return 2 * len(self.taps) * self.hidden

    def add(self, one: Conversation) -> None:
        """Keep a conversation. From here on it survives a kill.

        Raises:
            InputError: it cannot be written.
        """
        record = np.zeros(1, RECORD)
        record[0] = (one.number, len(one.tokens), one.answer, one.temperature, one.request_hash)
        parts = [record, one.tokens.astype("<u4")]
        if one.features is not None and self._takes(one.features):
            parts.append(np.ascontiguousarray(one.features))
            self._kept += 1
        for file, part in reversed(list(zip(self._files, parts, strict=False))):
            with explained(Path(file.name)):
                file.write(part.data)
                file.flush()
        self._new.append(record)
        if len(self._new) >= 64:
            self._fold()

    def conversation(self, place: int) -> Conversation:
        """The conversation at this place of the index; its features are a view into the file."""
        self._fold()
        record, start = self.index[place], int(self._starts[place])
        n, first = int(record["tokens"]), start - place
        return Conversation(
            int(record["number"]),
            np.asarray(self._tokens[start : start + n]).astype(np.int32),
            int(record["answer"]),
            float(record["temperature"]),
            int(record["request_hash"]),
            self._features[first : first + n - 1] if place < self._kept else None,
        )

    @property
    def index(self) -> npt.NDArray[np.void]:
        """The records, in the order of writing."""
        self._fold()
        return self._index

    def close(self) -> None:
        for file in self._files:
            with suppress(OSError):  # what a full disk did not take was told when it was added
                file.close()
        self._files = []
        self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def _takes(self, features: Halves) -> bool:
        """Whether a conversation's hidden states are kept, those of all before it being so."""
        if self._kept < len(self._index) + len(self._new):
            return False
        room = self._most_bytes
        return room is None or self._files[2].tell() + features.nbytes <= room

    def _fold(self) -> None:
        if self._new:
            self._index = np.concatenate([self._index, *self._new])
            self._new = []
            self._map()

    def _recover(self, writable: bool) -> None:
        paths = [self.folder / name for name in FILES]
        if writable:
            for path in paths:
                path.touch()
        sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
        whole = sizes[0] // RECORD.itemsize
        self._index = np.fromfile(paths[0], RECORD, whole) if whole else self._index
        lengths, answers = self._index["tokens"], self._index["answer"]
        if (lengths < 2).any() or (answers < 0).any() or (answers > lengths).any():
            raise InputError(f"{self.folder}/index.bin is damaged; write the data again")
        ends = np.cumsum([0, *(self._index["tokens"].astype(np.int64) - 1)]) * self.position_bytes
        self._kept = int(np.searchsorted(ends, sizes[2], "right")) - 1
        tokens = int(self._index["tokens"].sum(dtype=np.int64))
        wanted = (whole * RECORD.itemsize, 4 * tokens, int(ends[self._kept]))
        if sizes[1] < wanted[1]:
            raise InputError(f"{self.folder} lacks data that its index names; write the data again")
        if writable:
            for path, want in zip(paths, wanted, strict=True):
                with path.open("r+b") as file:
                    file.truncate(want)
            self._files = [path.open("ab") for path in paths]
        self._map()

    def _map(self) -> None:
        """Look at the files as far as the index goes."""
        self._starts = np.cumsum([0, *self._index["tokens"]], dtype=np.int64)
        tokens, shape = int(self._starts[-1]), (len(self.taps), self.hidden)
        self._tokens: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._features: Halves = np.zeros((0, *shape), np.uint16)
        if tokens:
            self._tokens = np.memmap(self.folder / FILES[1], "<u4", "r", shape=(tokens,))
        if self._kept:
            positions = int(self._starts[self._kept]) - self._kept
            self._features = np.memmap(self.folder / FILES[2], "<u2", "r", shape=(positions, *shape))
