"""The token ids of a text that grows."""

from __future__ import annotations

from forerun.core.tokens import TokenBuffer


def test_it_is_what_was_appended() -> None:
    text, expected = TokenBuffer(range(3)), list(range(3))
    for size in (0, 1, 300, 5, 2000):
        text.extend(list(range(size)))
        expected += range(size)
        assert text.tokens.tolist() == expected
        assert text.length == len(expected)


def test_what_is_forgotten_is_written_over() -> None:
    text = TokenBuffer([1, 2, 3])
    text.truncate(5)
    assert text.tokens.tolist() == [1, 2, 3]
    text.truncate(1)
    text.extend((7,))
    assert text.tokens.tolist() == [1, 7]
    text.truncate(0)
    assert text.length == 0
    assert text.tokens.size == 0
