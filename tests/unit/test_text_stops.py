from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.text.stops import Ending, StopString

END = 99


class Pieces:
    """A decoder whose token n stands for a piece of text, given as bytes; half characters wait."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.waiting = b""

    def piece(self, token: int) -> str:
        data = self.waiting + (b"" if token == END else self.pieces[token])
        for cut in range(len(data), -1, -1):
            try:
                text = data[:cut].decode()
            except UnicodeDecodeError:
                continue
            self.waiting = data[cut:]
            return text
        raise AssertionError

    def flush(self) -> str:
        waiting, self.waiting = self.waiting, b""
        return "�" if waiting else ""


def split(text: str, cuts: list[int]) -> list[bytes]:
    """`text` in UTF-8, cut at these bytes."""
    data = text.encode()
    places = sorted({cut for cut in cuts if cut < len(data)} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the stop string begins that is complete first; of those complete together, the longest."""
    for end in range(1, len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return min(found)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """How many characters at the end of the text may be the beginning of a stop string."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0
    )


texts = st.text(alphabet="abé", max_size=24)
stops = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3)


@settings(max_examples=300)
@example(text="aé", stop=["a"], cuts=[2], every=1)  # half a character waits behind the stop string
@given(text=texts, stop=stops, cuts=st.lists(st.integers(0, 60)), every=st.integers(1, 4))
def test_stop_strings(text: str, stop: list[str], cuts: list[int], every: int) -> None:
    """Exact across token borders, never shown, never held back longer than needed; however often one
    looks."""
    pieces = split(text, cuts)
    ending = Ending(Pieces(pieces), stop, [END])  # type: ignore[arg-type]
    where = first_stop(text, stop)
    shown, tokens, seen = "", 0, b""
    finished = None
    for token in range(len(pieces)):
        finished = ending(token)
        seen += pieces[token]
        if finished is not None:
            break
        if (token + 1) % every == 0:
            more, count = ending.take()
            shown += more
            tokens += count
            whole = seen.decode(errors="ignore")
            assert shown == whole[: len(whole) - longest_beginning(whole, stop)]
    assert (finished == "stop") == (where is not None)
    ending.end()
    more, count = ending.take()
    shown += more
    tokens += count
    assert shown == text[:where]
    assert ending.take() == ("", 0)
    # the tokens are those that begin before the stop string
    starts = [len(b"".join(pieces[:token]).decode(errors="ignore")) for token in range(len(pieces))]
    assert tokens == (len(pieces) if where is None else sum(start < where for start in starts))


@given(text=texts, cuts=st.lists(st.integers(0, 60)), stop=stops)
def test_a_token_comes_with_the_last_of_its_characters(text: str, cuts: list[int], stop: list[str]) -> None:
    pieces = split(text, cuts)
    ending = Ending(Pieces(pieces), stop, [END])  # type: ignore[arg-type]
    shown, tokens = 0, 0
    for token in range(len(pieces)):
        if ending(token) is not None:
            return
        more, count = ending.take()
        shown, tokens = shown + len(more), tokens + count
        # a token that completes none, being half of one, comes with the other half
        length = [len(b"".join(pieces[:n]).decode(errors="ignore")) for n in range(token + 2)]
        assert tokens == sum(max(end, start + 1) <= shown for start, end in pairwise(length))


def test_an_end_token_belongs_to_the_answer() -> None:
    ending = Ending(Pieces([b"ab", b"c"]), ["cd"], [END])  # type: ignore[arg-type]
    assert [ending(0), ending(1)] == [None, None]
    assert ending.take() == ("ab", 1)
    assert ending(END) == "stop"
    ending.end()
    assert ending.take() == ("c", 2)


def test_an_end_token_with_text_may_complete_a_stop_string() -> None:
    ending = Ending(Pieces([b"ab", b"cd"]), ["bc"], [1])  # type: ignore[arg-type]
    assert [ending(0), ending(1)] == [None, "stop"]
    ending.end()
    assert ending.take() == ("a", 1)


def test_half_a_character_at_the_very_end() -> None:
    ending = Ending(Pieces(["é".encode()[:1]]), [], [END])  # type: ignore[arg-type]
    assert ending(0) is None
    assert ending.take()[0] == ""
    ending.end()
    assert ending.take()[0] == "�"


@pytest.mark.parametrize(("least", "expected"), [(0, "a"), (2, "a"), (3, "abc"), (4, "abcb"), (9, "abcbb")])
def test_stop_strings_before_min_tokens_do_not_count(least: int, expected: str) -> None:
    pieces = [b"a", b"b", b"cb", b"b"]
    ending = Ending(Pieces(pieces), ["b"], [END], min_tokens=least)  # type: ignore[arg-type]
    for token in range(4):
        if ending(token) is not None:
            break
    ending.end()
    assert ending.take()[0] == expected


@given(pattern=st.text(alphabet="ab", min_size=1, max_size=6), text=st.text(alphabet="ab", max_size=30))
def test_matching(pattern: str, text: str) -> None:
    stop = StopString(pattern)
    for end, character in enumerate(text, 1):
        assert stop.push(character) == text[:end].endswith(pattern)
        sizes = range(min(end, len(pattern)), -1, -1)
        assert stop.matched == next(size for size in sizes if text[:end].endswith(pattern[:size]))
