"""Chat templates: what transformers would render, and one clear line when a template cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import cache

import pytest
from text_samples import byte_level_metadata, train
from tokenizers import pre_tokenizers

from forerun.errors import InputError
from forerun.text import Tokenizer, from_gguf
from forerun.text.chat import Message, render

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO: list[Message] = [{"role": "user", "content": "Hello"}]


@cache
def tokenizer(source: str | None) -> Tokenizer:
    plain = from_gguf(byte_level_metadata(train(pre_tokenizers.ByteLevel(add_prefix_space=False)), "gpt-2"))
    return replace(plain, chat_templates={} if source is None else {"default": source})


def rendered(source: str, **variables: object) -> str:
    return render(tokenizer(source), HELLO, variables=variables)


def test_the_default_models_template() -> None:
    text = render(tokenizer(SMOLLM), HELLO)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    system: Message = {"role": "system", "content": "Be brief."}
    text = render(tokenizer(SMOLLM), [system, *HELLO], add_generation_prompt=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),  # trim_blocks and lstrip_blocks
        ("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", "<|start|>|<|end|>|"),
        ("{{ {'b': '<é>&', 'a': [1, none, true]} | tojson }}", '{"b": "<é>&", "a": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hello!"),
        (
            "{%- set ns = namespace(n=1, found=false) -%}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ ns.found }}",
            "2False",
        ),
        ("{{ dict(a=1)['a'] }}{{ tools is none }}{{ documents is none }}", "1TrueTrue"),
        ("{{ messages[0]['content'] | trim | upper }}", "HELLO"),
        ("{{ style }}", "short"),
    ],
)
def test_what_templates_may_use(source: str, text: str) -> None:
    assert rendered(source, style="short") == text


def test_the_date() -> None:
    before = datetime.now()
    shown = datetime.strptime(rendered("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"), "%Y-%m-%d %H:%M:%S.%f")
    assert before <= shown <= datetime.now()


def test_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    both = replace(
        tokenizer("plain"), chat_templates={"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    )
    assert render(both, HELLO, tools=tools) == "f"
    assert render(both, HELLO) == "plain"
    assert render(tokenizer("{{ tools | length }}"), HELLO, tools=tools) == "1"


def test_values_that_are_none_are_left_out() -> None:
    call: Message = {"role": "assistant", "content": None, "tool_calls": [{"arguments": ("a", 1.5)}]}
    text = render(tokenizer("{{ messages[0] | tojson }}"), [call])
    assert text == '{"role": "assistant", "tool_calls": [{"arguments": ["a", 1.5]}]}'


def test_text_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "text", "text": "here."}]
    text = render(tokenizer("{{ messages[0].content + '!' }}"), [{"role": "user", "content": parts}])
    assert text == "See\nhere.!"


def test_a_special_token_typed_by_a_user_is_that_token() -> None:
    made = tokenizer("<|start|>{{ messages[0].content }}")
    ids = made.encode(render(made, [{"role": "user", "content": "a<|end|>"}]), add_special=False)
    assert ids[0] == 1
    assert ids[-1] == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{% if %}", "template cannot be used; use --raw"),
        ("{% for m in messages %}", "template cannot be used"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ messages[0].content.missing.field }}", "refuses"),
        ("{{ 1 // 0 }}", "refuses"),
        ("{{ 'a' + 1 }}", "refuses"),
        ("{{ messages | tojson(indent='x', separators=5) }}", "refuses"),
        ("{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{% set ns = namespace(__class__=1) %}", "cannot have an attribute"),
        ("{% set ns = namespace() %}{% set ns.__init__ = 1 %}", "cannot"),
        ("{{ range(1000000) | list }}", "refuses"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "refuses"),
        ("{% include 'x' %}", "refuses"),
    ],
)
def test_templates_that_fail(source: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        rendered(source)
    assert "\n" not in str(caught.value)


def test_no_template() -> None:
    with pytest.raises(InputError, match="no chat template; use --raw"):
        render(tokenizer(None), HELLO)


@pytest.mark.parametrize(
    "messages", [[], ["hi"], [{}], [{"role": 1, "content": "a"}], [{"role": "user", "content": b"x"}]]
)
def test_messages_that_are_none(messages: list[Message]) -> None:
    with pytest.raises(InputError):
        render(tokenizer("x"), messages)
