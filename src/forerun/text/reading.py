"""Text from outside."""

from __future__ import annotations

from typing import BinaryIO

from forerun.errors import InputError

LONGEST = 64 << 20
"""Bytes of a text from outside: more than any context holds."""


def read_some(file: BinaryIO) -> bytes:
    """All that a file holds. InputError where it goes on and on, as a device may."""
    data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise InputError(f"the input is longer than {LONGEST >> 20} MB, which no context holds; shorten it")
    return data


def read_text(data: bytes) -> str:
    """`data` as text. InputError, naming the place, when it is not UTF-8; a byte order mark is dropped."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise InputError(f"the input is not valid UTF-8 ({at}); convert it to UTF-8") from error


def is_unicode(text: str) -> bool:
    """Whether a text is without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
