"""Chat messages to the text a model was trained to answer.

A special token's text inside a message ("<|im_end|>" typed by a user) is not escaped: encoded with the rest
it becomes that token, exactly as with transformers' `apply_chat_template`. A program that passes on messages
of people it does not trust has to take such texts out itself.

The text already holds whatever start token the template wants, so it is encoded with `add_special=False`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.errors import InputError
from forerun.text.guard import bounded, refused
from forerun.text.tokenizer import Tokenizer

PATIENCE, MEMORY, LONGEST = 5.0, 512 << 20, 8_000_000
"""Seconds and bytes that a template may take, and characters that it may make: nobody vouches for it."""

Message = Mapping[str, object]
"""One turn: "role" and "content", a text or a list of text parts, and whatever else the template reads
("tool_calls", ...)."""


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
) -> str:
    """The text of `messages` under the model's chat template.

    add_generation_prompt  open the assistant's turn at the end
    tools                  JSON schemas of functions the model may call; the template "tool_use" is used then,
                           where the model has one
    variables              further variables the template knows, e.g. {"enable_thinking": False}

    Raises:
        InputError: the model has no template, a message is not one, or the template refuses the messages.
    """
    source = _choose_template(tokenizer.chat_templates, tools)
    if not messages:
        raise InputError("there are no chat messages; give at least one")
    given = {
        "messages": [_message(message) for message in messages],
        "tools": None if tools is None else [_plain(tool) for tool in tools],
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **tokenizer.special_tokens,
        **{name: _plain(value) for name, value in (variables or {}).items()},
    }
    from forerun.text.template import compile_template

    with refused("the model's chat template cannot be used; use --raw for a prompt without it"):
        template = compile_template(source)
    with (
        refused("the model's chat template refuses these messages"),
        bounded("the model's chat template", PATIENCE, MEMORY),
    ):
        text = template.render(given)
    if len(text) > LONGEST:
        raise InputError(f"the chat template made a text of {len(text)} characters, which no context holds")
    return text


def _choose_template(templates: Mapping[str, str], tools: object) -> str:
    if tools is not None and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise InputError("this model has no chat template; use --raw to give it the prompt as it is")
    return templates["default"]


def _message(message: Message) -> dict[object, object]:
    """A message as templates expect it: without keys that have no value."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError('a chat message must be an object with a "role" and a "content", both texts')
    content = message.get("content")  # None where there are tool calls, say
    empty = content is None and not message.keys() - {"role", "content"}
    if empty or not isinstance(content, str | list | tuple | None):
        raise InputError('the "content" of a chat message must be a text, or a list of text parts')
    plain = {_plain(key): _plain(value) for key, value in message.items() if value is not None}
    if isinstance(content, list | tuple):  # few templates know lists, and some print them as they are
        plain["content"] = "\n".join(_part(part) for part in content)
    return plain


def _part(part: object) -> str:
    """The text of one of a content's parts."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise InputError(
            'a part of a chat message\'s "content" must be a text, {"type": "text", "text": "..."}; '
            + (
                f"this one is of type {kind!r}"
                if isinstance(kind, str) and kind != "text"
                else "this one is not"
            )
        )
    return text


def _plain(value: object) -> object:
    """`value` made of JSON's types only, so that a template reaches no method of any other."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise InputError(
        f"a chat message holds a {type(value).__name__}; give texts, numbers, lists and objects only"
    )
