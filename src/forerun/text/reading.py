"""Text from outside."""

from __future__ import annotations

from forerun.errors import InputError


def read_text(data: bytes) -> str:
    """`data` as text. InputError, naming the place, when it is not UTF-8; a byte order mark is dropped."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise InputError(f"the input is not valid UTF-8 ({at}); convert it to UTF-8") from error
