"""The jinja2 environment that chat templates are written for: transformers' (5.24), function for function.

A template comes with a model file, so it is untrusted code: it runs in jinja2's immutable sandbox and is
given nothing but plain data.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sized
from datetime import datetime
from typing import ClassVar, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

LARGEST = 1_000_000
"""Characters, members or bits of a product in a template."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what to train on; its content is kept as it is."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]  # an instance variable for jinja2's types

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class SafeNamespace(Namespace):
    """jinja2's namespace, without attributes that reach into Python."""

    def __init__(self, *args: Mapping[str, object], **attributes: object) -> None:
        given = dict(*args, **attributes)
        for name in given:
            _check_name(name)
        super().__init__(given)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot have an attribute {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like the built-in filter, but without escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _dict(*args: Mapping[str, object], **items: object) -> dict[str, object]:
    return dict(*args, **items)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, in which no single product or power is huge. (Loops are bounded where it is called.)"""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        size = _size(left) * (right if isinstance(right, int) else 1) if operator == "**" else 0
        if operator == "*":
            numbers = isinstance(left, int) and isinstance(right, int)
            size = _size(left) + _size(right) if numbers else _repeated(left, right)
        if size > LARGEST:
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _size(number: object) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _repeated(left: object, right: object) -> int:
    """Members of a text or list that is multiplied by a number."""
    if isinstance(right, Sized):
        left, right = right, left
    return len(left) * right if isinstance(left, Sized) and isinstance(right, int) else 0


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., object]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": SafeNamespace,
        "dict": _dict,
    }
    environment.globals.update(functions)
    return environment


@functools.lru_cache(maxsize=8)
def compile_template(source: str) -> Template:
    """The template, ready to render. Raises jinja2's TemplateSyntaxError."""
    return _environment().from_string(source)
