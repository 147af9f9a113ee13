"""A chat template comes with a model file that nobody vouches for: it ends, and leaves memory alone."""

from __future__ import annotations

import pytest
from test_text_chat import tokenizer

from forerun.errors import InputError
from forerun.text import chat
from forerun.text.chat import render

HELLO = [{"role": "user", "content": "Hello"}]
MANY = "{% for a in range(99999) %}"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "PATIENCE", 0.2)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (MANY * 3 + "{% endfor %}" * 3, "longer than 0.2 seconds"),
        (MANY * 3 + "spam" + "{% endfor %}" * 3, "longer than"),
        (
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
            "longer",
        ),
        ("{{ 'spam' * 10 ** 10 }}", r"result of \* is too large"),
        ("{{ 10 ** 10 * 'spam' }}", r"result of \* is too large"),
        ("{{ [1] * 10 ** 9 }}", r"result of \* is too large"),
        ("{{ 9 ** 9999999 }}", r"result of \*\* is too large"),
        (
            "{% set n = namespace(x=9) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
            r"result of \* is too large",
        ),
        ("{% for a in range(99) %}{{ 'x' * 100000 }}{% endfor %}", "9900000 characters"),
        ("{{" + "(" * 9999 + "1" + ")" * 9999 + "}}", "cannot be used"),
    ],
)
def test_refused(source: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        render(tokenizer(source), HELLO)


def test_a_text_that_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "PATIENCE", 60.0)
    monkeypatch.setattr(chat, "MEMORY", 64 << 20)
    doubles = "{% set n = namespace(x='spam') %}{% for a in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    with pytest.raises(InputError, match="more than 64 MB of memory"):
        render(tokenizer(doubles), HELLO)


def test_arithmetic_goes_on() -> None:
    made = tokenizer(
        "{{ 6 * 7 }} {{ '-' * 3 }} {{ 1.5 * 2 }} {{ 2 ** 8 }} {{ [0] * 2 }} {{ 3 * 'ab' }} {{ 2 ** -1 }}"
    )
    assert render(made, HELLO) == "42 --- 3.0 256 [0, 0] ababab 0.5"
