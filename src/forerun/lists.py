"""Lists as users write them: items with commas between, quotes around one that has commas itself.

    suffix,head:"a,b/head"  ->  suffix | head:a,b/head

Blanks around an item do not count. Quotes stand around a whole item, or around what follows its first colon;
a quote between them is written twice. What is on the disk needs none: of several readings the longest that is
there is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from forerun.errors import InputError

MOST_JOINTS = 4096
KIND = r"(?:\w*:)?"
"""What may come before a quote: the first part of `head:"a,b"`."""

QUOTED = re.compile(rf'\s*({KIND})"((?:[^"]|"")*)"\s*')
OPENED = re.compile(rf'\s*{KIND}"')
SPECIAL = re.compile(r'[,+"]|^\s|\s$|:\s')


def split_items(what: str, text: str, *, there: Callable[[str], bool] | None = None) -> list[str]:
    """The items of a list, each once.

    Args:
        what: is listed, for messages.
        there: whether a piece of the text, however many commas it has, names what is on the disk.

    Raises:
        InputError: no item, an empty one, or quotes that do not close.
    """
    return list(dict.fromkeys(item for _, item in scan(what, text, ",", there=there)))


def scan(
    what: str,
    text: str,
    joints: str,
    *,
    there: Callable[[str], bool] | None = None,
    joins: Callable[[str, int], bool] = lambda text, at: True,
) -> list[tuple[str, str]]:
    """The items of a list, each with the joint before it, "" for the first. The rest as for `split_items`.

    Args:
        joints: the characters that may join two items.
        joins: whether the one at this place of the text does, behind what is neither quoted nor there.
    """
    places = [at for at, character in enumerate(text) if character in joints]
    if len(places) > MOST_JOINTS:
        _refuse(what, text, "is too long")
    found: list[tuple[str, str]] = []
    joint, start = "", 0
    while True:
        places = [at for at in places if at >= start]
        ends = () if there is None else (len(text), *reversed(places))
        if (quoted := QUOTED.match(text, start)) and text[quoted.end() : quoted.end() + 1] in ("", *joints):
            item, end = quoted[1] + quoted[2].replace('""', '"'), quoted.end()
        else:
            end = next((at for at in ends if there and there(text[start:at].strip())), -1)
            if end < 0 and OPENED.match(text, start):
                _refuse(what, text, "has a quote that is not closed, or goes on behind one that is")
            if end < 0:
                end = next((at for at in places if joins(text, at)), len(text))
            item = text[start:end].strip()
        if not item:
            _refuse(what, text, "has an empty item" if text.strip(f" {joints}") else "names nothing")
        found.append((joint, item))
        if end == len(text):
            return found
        joint, start = text[end], end + 1


def quoted(item: str, always: bool = False) -> str:
    """An item as it is written in a list: in quotes if it has what means something there, or `always`."""
    if not (always or SPECIAL.search(item)):
        return item
    kind = re.match(KIND, item)
    at = kind.end() if kind else 0
    inner = item[at:].replace('"', '""')
    return f'{item[:at]}"{inner}"'


def unquoted(name: str) -> str:
    """A name without the quotes that `quoted` put around it, if there are any."""
    found = QUOTED.fullmatch(name)
    return name if found is None else found[1] + found[2].replace('""', '"')


def _refuse(what: str, text: str, why: str) -> NoReturn:
    shown = f"{what} {text!r}" if text else what
    raise InputError(f'{shown} {why}; put commas between items, "quotes" around one that has some')
