"""The errors a user sees: one line that says what is wrong and what to do, and an exit status.

Messages often quote text out of files that nobody vouches for, so they are made safe to print here,
once: one line, printable characters only (no terminal escapes), and not longer than a screen.
"""

from __future__ import annotations

LONGEST_MESSAGE = 600  # characters


def one_line(text: str) -> str:
    """`text` on one line: whitespace folded, unprintable characters as '?', its middle left out when long."""
    if len(text) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2 - 2  # the end matters too: it says what to do
        text = f"{text[:half]} ... {text[-half:]}"[:LONGEST_MESSAGE]
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class ForerunError(Exception):
    """A failure with a message for the user, printed by the command line, which exits with `exit_status`."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class InputError(ForerunError):
    """What the user gave (a file, a folder, a name, an option, a prompt) cannot be used."""


class CheckFailed(ForerunError):
    """A check that the user asked for ran and its answer is no."""

    exit_status = 1
