"""Where an answer ends, and what of it may be shown: end tokens and stop strings, asked token by token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from forerun.text.detokenize import StreamDecoder


class StopString:
    """Watches a text character by character for one string (Knuth, Morris, Pratt)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        """How many characters of `string` the text ends with: what must be held back."""
        self._shorter = [0] * (len(string) + 1)
        for end in range(1, len(string)):
            self._shorter[end + 1] = self._next(self._shorter[end], string[end])

    def push(self, character: str) -> bool:
        """Whether the string is complete with this character."""
        full = self.matched == len(self.string)
        self.matched = self._next(self._shorter[self.matched] if full else self.matched, character)
        return self.matched == len(self.string)

    def _next(self, matched: int, character: str) -> int:
        while matched and self.string[matched] != character:
            matched = self._shorter[matched]
        return matched + (self.string[matched] == character)


class Ending:
    """Implements `core.protocols.Stop` for texts; holds back what may turn out to belong to a stop string.

    The text ends before the stop string that is complete first (of two that end together, the longer). Which
    tokens carried its characters makes no difference. Characters are held back exactly while they are the
    beginning of a stop string; a token is released with the last of its characters. Tokens of which nothing
    is left in the text (they begin inside the stop string) are dropped with it, so text and tokens end
    together.

    Args:
        decoder: of this text.
        stop: the stop strings.
        end_tokens: tokens that end the answer; they belong to it.
        min_tokens: stop strings that are complete before so many tokens do not count.
    """

    def __init__(
        self, decoder: StreamDecoder, stop: Sequence[str], end_tokens: Collection[int], min_tokens: int = 0
    ) -> None:
        self._decoder = decoder
        self._stops = [StopString(string) for string in stop]
        self._end_tokens = frozenset(end_tokens)
        self._min_tokens = min_tokens
        self._unread: list[int] = []  # tokens whose text can end nothing
        self._text: list[str] = []  # characters
        self._spans: list[tuple[int, int]] = []  # of each token: characters before it and with it
        self._shown = self._shown_tokens = 0
        self._holding = 0
        self._cut = False

    def __call__(self, token: int) -> str | None:
        if not self._stops:
            self._unread.append(token)
            return "stop" if token in self._end_tokens else None
        found = self._append(self._decoder.piece(token))
        if found is None:
            return "stop" if token in self._end_tokens else None
        del self._text[found:]
        while self._spans and self._spans[-1][0] >= found:
            self._spans.pop()
        self._holding = 0
        self._cut = True
        return "stop"

    def end(self) -> None:
        """The answer is over: hold nothing back any more, not even the bytes of half a character."""
        self._read()
        if not self._cut:  # what waits behind a stop string is gone with it
            self._text += self._decoder.flush()
        self._holding = 0
        self._spans = [(start, min(end, len(self._text))) for start, end in self._spans]

    def take(self) -> tuple[str, int]:
        """Text that may be shown since the last call, and how many more tokens that completes."""
        self._read()
        shown, tokens = len(self._text) - self._holding, self._shown_tokens
        text = "".join(self._text[self._shown : shown])
        while tokens < len(self._spans) and self._spans[tokens][1] <= shown:
            tokens += 1
        count = tokens - self._shown_tokens
        self._shown, self._shown_tokens = shown, tokens
        return text, count

    def _read(self) -> None:
        while self._unread:
            self._add(self._decoder.piece(self._unread.pop(0)))

    def _add(self, piece: str) -> int:
        """Add the text of one token; where it starts."""
        start = len(self._text)
        self._text += piece
        # a token without text of its own (half a character, say) comes with the first character after it
        self._spans.append((start, max(len(self._text), start + 1)))
        return start

    def _append(self, piece: str) -> int | None:
        """The same; where the text is to end, if a stop string is complete."""
        start = self._add(piece)
        counts = len(self._spans) >= self._min_tokens
        for end, character in enumerate(piece, start + 1):
            lengths = [len(stop.string) for stop in self._stops if stop.push(character)]
            if lengths and counts:
                return end - max(lengths)
        self._holding = max((stop.matched for stop in self._stops), default=0)
        return None
