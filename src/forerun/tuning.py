"""What `forerun tune` chose for a model on this machine, and how it is kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from forerun.models.records import forget_record, model_key, read_record, write_record

RECORDS = "tuned"


@dataclass(frozen=True)
class Choice:
    """What `auto` stands for.

    Attributes:
        drafter: by name, as for `forerun.roster`.
        draft_tokens: guesses to verify a step; None decides by cost.
        threads: to compute with; None is all cores.
        dtype: how weights are executed; "auto" is as the file has them.
        acceptance: how often a guess was right where those before it were, over all depths; None if unknown.
        share: of the steps, in which there were guesses; None if unknown.
    """

    drafter: str = "suffix"
    draft_tokens: int | None = None
    threads: int | None = None
    dtype: str = "auto"
    acceptance: float | None = None
    share: float | None = None


def known_choice(model: Path) -> Choice | None:
    """What was chosen for the model at this path, or None."""
    record = read_record(RECORDS, model_key(model))
    if record is None:
        return None
    drafter, dtype = record.get("drafter"), record.get("dtype")
    draft_tokens, threads = record.get("draft_tokens"), record.get("threads")
    acceptance, share = record.get("acceptance"), record.get("share")
    fine = (
        isinstance(drafter, str)
        and isinstance(dtype, str)
        and (draft_tokens is None or (type(draft_tokens) is int and 0 <= draft_tokens < 64))
        and (threads is None or (type(threads) is int and 1 <= threads <= 1024))
        and all(part is None or (type(part) is float and 0 <= part <= 1) for part in (acceptance, share))
    )
    return Choice(drafter, draft_tokens, threads, dtype, acceptance, share) if fine else None  # type: ignore[arg-type]


def keep_choice(model: Path, choice: Choice) -> Path | None:
    """Use this from now on; returns the record's file, or None where there is no place for one."""
    return write_record(RECORDS, model_key(model), asdict(choice))


def forget_choice(model: Path) -> None:
    """Go back to the defaults."""
    forget_record(RECORDS, model_key(model))
