"""Drafters by name: what a name stands for, the models that some need, and drafters made of them.

auto             what `forerun tune` chose; else suffix, and with it the head that comes with the package for
                 the model, if there is one
none             no drafter: plain decoding
lookup           prompt lookup
suffix           suffix matching, in the text and in texts to remember
draft:MODEL      a draft model of the same vocabulary: a file, a folder, a hub id or a known name
skip:K           the target's own first K layers and its head; `skip` takes a third of the layers
head:DIR         a trained head (EAGLE, EAGLE-3, Medusa, Hydra): a folder, a GGUF file, a hub id, or one that
                 comes with the package (head:smollm2-135m/eagle3); eagle:DIR, eagle3:DIR, medusa:DIR and
                 hydra:DIR also say of which family it must be; a path alone is enough
NAME,NAME,...    a cascade of these, the cheapest first; NAME+NAME is the same

Quotes go around a path with commas or + in it: head:"a,b/head".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forerun.arguments import refuse, whole_number
from forerun.core.protocols import Drafter
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.none import NoDrafter
from forerun.drafters.paced import PacedDrafter
from forerun.errors import InputError
from forerun.lists import quoted, scan
from forerun.models.config import layers_to_run
from forerun.models.draft_vocabulary import DraftVocabulary
from forerun.models.heads.head import DRAFTER_NAMES

if TYPE_CHECKING:
    from forerun import _core
    from forerun.backends.cpu.heads import CpuHead
    from forerun.core.account import Pace
    from forerun.drafters.model import Ranker
    from forerun.models.backend import Backend
    from forerun.models.config import ModelConfig
    from forerun.models.heads import Head
    from forerun.text.tokenizer import Tokenizer

AUTO = "suffix"
NAMES = (
    "auto, none, lookup, suffix, draft:MODEL, skip:K, head:DIR (or eagle:DIR, eagle3:DIR, medusa:DIR, "
    'hydra:DIR), or several with commas or + between, "quotes" around a path that has some'
)
BEFORE_PLUS = re.compile(r"(?:^|[,+])\s*(?:auto|none|lookup|suffix|skip(?::\d+)?)\s*$")
AFTER_PLUS = re.compile(
    rf"\s*(?:(?:auto|none|lookup|suffix|draft|skip|{'|'.join(DRAFTER_NAMES)})\s*(?:[:+,]|$)|\")"
)
"""Where a + joins drafters, as not each + of a path does."""

LONGEST_PATH = 4096

TAKES_DETAIL = ("draft", "skip")
DraftLoader = Callable[[str], "tuple[Backend, Tokenizer | DraftVocabulary]"]


def best_drafter(target: ModelConfig) -> str:
    """What "auto" stands for where nothing was tuned: suffix matching, and the best of the package's heads
    for the model. The budget lets the head rest where it does not pay."""
    from forerun.models.heads.fitting import fitting_heads

    return join_cascade([AUTO, *(f"head:{name}" for name in fitting_heads(target)[:1])])


def all_drafters(target: ModelConfig) -> list[str]:
    """Drafters to try that need nothing but the package. Some may not fit: `Roster.check` tells."""
    from forerun.models.heads.fitting import fitting_heads
    from forerun.models.shipped import shipped_drafts

    heads = [f"head:{name}" for name in fitting_heads(target)]
    return ["auto", AUTO, "lookup", "skip", *heads, *(f"draft:{name}" for name in shipped_drafts())]


@dataclass(frozen=True)
class Circumstances:
    """What a drafter is made for: one text.

    Attributes:
        longest: tokens that the text may come to have.
        ranker: makes what turns the logits of the draft model behind this name into candidates.
        core_settings: makes what a drafting head needs for the same.
        pace: makes what decides how deep a drafter of this name is asked; None: as deep as may be.
    """

    longest: int
    ranker: Callable[[str], Ranker]
    core_settings: Callable[[], _core.SamplingSettings]
    pace: Callable[[str], Pace] | None = None


@runtime_checkable
class Layered(Protocol):
    """A backend that can give a smaller one: its first layers and its head, sharing the weights."""

    def first_layers(self, layers: int) -> Backend: ...


@runtime_checkable
class Headed(Protocol):
    """A backend that can load drafting heads beside its model."""

    def load_head(self, head: Head) -> CpuHead: ...


class Roster:
    """The drafters of one engine. Models are loaded once, when their name is first checked.

    Args:
        backend: the target.
        tokenizer: the target's.
        load: how a draft model is loaded, from its name, with its tokenizer or its part of the target's
            vocabulary.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        load: DraftLoader | None,
    ) -> None:
        self._target = backend
        self._tokenizer = tokenizer
        self._load = load
        self.past: _core.SuffixIndex | None = None
        """Texts to remember."""
        self._guides: dict[str, tuple[Backend, DraftVocabulary | None]] = {}
        self._heads: dict[str, CpuHead] = {}

    def check(self, names: str) -> None:
        """Refuse what cannot be used; load the models that are named.

        Raises:
            InputError: a name that stands for nothing, or a model that does not fit.
        """
        for name in check_names(names):
            if name.partition(":")[0] in TAKES_DETAIL:
                self._guide(name)
            elif name.partition(":")[0] in DRAFTER_NAMES:
                self._head(name)

    def make(self, names: str, circumstances: Circumstances) -> Drafter:
        """A new drafter for one text."""
        self.check(names)
        drafters = [self._one(name, circumstances) for name in check_names(names)]
        if len(drafters) == 1:
            return drafters[0]
        from forerun.drafters.cascade import CascadeDrafter

        return CascadeDrafter(drafters)

    def _one(self, name: str, circumstances: Circumstances) -> Drafter:
        if name == "none":
            return NoDrafter()
        if name == "lookup":
            return LookupDrafter()
        if name == "suffix":
            from forerun.drafters.suffix import SuffixDrafter

            return SuffixDrafter(self.past)
        make = self._head_drafter if name.partition(":")[0] in DRAFTER_NAMES else self._model_drafter
        return make(name, circumstances)

    def _model_drafter(self, name: str, circumstances: Circumstances) -> Drafter:
        from forerun.drafters.model import ModelDrafter
        from forerun.models.guide import Guide

        backend, part = self._guide(name)
        capacity = min(circumstances.longest, backend.config.context)
        guide = Guide(backend, capacity, part)
        drafter = ModelDrafter(guide, circumstances.ranker(name), name.partition(":")[0])
        if circumstances.pace is None:
            return drafter
        return PacedDrafter(drafter, circumstances.pace(drafter.name))

    def _head_drafter(self, name: str, circumstances: Circumstances) -> Drafter:
        from forerun.drafters.heads import HeadDrafter

        head = self._head(name)
        core = head.drafter(circumstances.core_settings(), circumstances.longest)
        if circumstances.pace is None:
            return HeadDrafter(core, head.taps, head.name)
        pace = circumstances.pace(head.name)
        return PacedDrafter(HeadDrafter(core, head.taps, head.name, reads=pace.hopeful), pace)

    def _head(self, name: str) -> CpuHead:
        """The head behind `head:DIR`."""
        if name not in self._heads:
            from forerun.models.heads import find_head

            family, _, where = name.partition(":")
            if not isinstance(self._target, Headed):
                raise InputError(f"drafter {name}: this backend does not run heads; choose another drafter")
            self._heads[name] = self._target.load_head(find_head(where, family))
        return self._heads[name]

    def _guide(self, name: str) -> tuple[Backend, DraftVocabulary | None]:
        """The model behind `draft:MODEL` or `skip:K`."""
        if name not in self._guides:
            kind, _, detail = name.partition(":")
            draft = kind == "draft"
            self._guides[name] = self._draft_model(detail) if draft else (self._first_layers(detail), None)
        return self._guides[name]

    def _draft_model(self, model: str) -> tuple[Backend, DraftVocabulary | None]:
        if self._load is None:
            raise InputError("draft models cannot be loaded into this engine; make it with forerun.load")
        from forerun.text.vocabularies import refuse_other_vocabulary

        backend, tokens = self._load(model)
        refuse_other_vocabulary(model, self._tokenizer, tokens, self._target.config.vocab_size)
        return backend, tokens if isinstance(tokens, DraftVocabulary) else None

    def _first_layers(self, layers: str) -> Backend:
        wanted = layers_to_run(layers, self._target.config.layers)
        if not isinstance(self._target, Layered):
            raise InputError("drafter skip: this model cannot run on its first layers alone; choose another")
        return self._target.first_layers(wanted)


def check_names(names: str) -> list[str]:
    """The drafters that `names` has, each once, "auto" resolved; what can be told without a model is checked.

    Raises:
        InputError: a name that stands for nothing, or names that do not go together.
    """
    if not isinstance(names, str):
        refuse("drafter", names, f"a text: {NAMES}")
    if not names.strip():
        raise InputError(f"there is no drafter {names!r}; {_meant(names)}")
    named = (AUTO if name == "auto" else head_named(name) for name in split_cascade(names))
    found = list(dict.fromkeys(named))
    for name in found:
        kind, colon, detail = name.partition(":")
        takes_detail = kind in TAKES_DETAIL or kind in DRAFTER_NAMES
        if not (takes_detail or kind in ("none", "lookup", "suffix")) or (colon and not takes_detail):
            raise InputError(f"there is no drafter {name!r}; {_meant(name)}")
        if kind == "draft" and not detail:
            raise InputError("draft needs a model; write draft:MODEL with a file, a folder or a hub id")
        if kind in DRAFTER_NAMES and not detail:
            raise InputError(f"{kind} needs a head; write {kind}:DIR with its folder or a hub id")
        if kind == "skip" and colon and whole_number(detail) < 1:
            raise InputError(f"drafter {name!r}: give a number of layers, at least 1, such as skip:4")
    if len(found) > 1 and "none" in found:
        raise InputError(f"drafter {names!r}: none goes with no other")
    return found


def _meant(name: str) -> str:
    """What to write in place of a name that stands for nothing."""
    from forerun.models.heads import is_head

    if os.path.exists(name) and is_head(Path(name)):  # a folder here, which a path alone would tell
        return f"for the head of this name write head:{name}"
    return f"choose among {NAMES}"


def split_cascade(names: str) -> list[str]:
    """The drafters that commas or + join. InputError as for `lists.scan`."""
    return [name for _, name in _scan("drafter", names)]


def join_cascade(names: Sequence[str]) -> str:
    """The text that `split_cascade` takes apart into these names, whatever is on the disk."""
    text = ",".join(map(quoted, names))
    return text if split_cascade(text) == list(names) else ",".join(quoted(one, always=True) for one in names)


def split_list(option: str, text: str) -> list[str]:
    """The drafters, and cascades joined by +, of a list with commas between them: each once, cascades with
    commas. InputError as for `lists.scan`."""
    cascades: list[list[str]] = []
    for joint, name in _scan(option, text):
        if joint != "+":
            cascades.append([name])
        elif name not in cascades[-1]:
            cascades[-1].append(name)
    return list(dict.fromkeys(map(join_cascade, cascades)))


def _scan(what: str, text: str) -> list[tuple[str, str]]:
    return scan(what, text, ",+", there=_is_path, joins=_joins)


def _joins(text: str, at: int) -> bool:
    """Whether what is at this place joins drafters: a comma does, and + before a drafter's name or a head's
    folder, or behind a name that has no folder."""
    if text[at] == "," or BEFORE_PLUS.search(text, 0, at) or AFTER_PLUS.match(text, at + 1):
        return True
    ends = (place for place in range(at + 1, len(text) + 1) if text[place : place + 1] in ("", ",", "+"))
    return any(head_named(path) != path for path in (text[at + 1 : end].strip() for end in ends))


def _is_path(name: str) -> bool:
    """Whether a drafter's name, or the detail behind its colon, is the path of something."""
    kind, detail = _kind_of(name)
    path = name if not kind and os.sep in name else detail if kind in (*DRAFTER_NAMES, "draft") else ""
    return 0 < len(path) <= LONGEST_PATH and os.path.exists(os.path.expanduser(path))


def _kind_of(name: str) -> tuple[str, str]:
    """What stands before and behind a name's first colon; a path with a colon in it has no kind."""
    kind, colon, detail = name.partition(":")
    return (kind, detail) if colon and os.sep not in kind else ("", "")


def head_named(name: str) -> str:
    """A folder that holds a head is a drafter's name too."""
    if os.sep not in name or _kind_of(name)[0]:
        return name
    from forerun.models.heads import is_head

    path = os.path.expanduser(name)
    return f"head:{name}" if os.path.exists(path) and is_head(Path(path)) else name
