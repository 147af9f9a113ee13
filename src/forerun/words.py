"""Words for people."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """ "1 token", "2 tokens"; `plural` where it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
