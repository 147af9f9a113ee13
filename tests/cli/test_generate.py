"""`forerun generate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.program import error_line, forerun
from support.tiny import Tiny, write_tiny_gguf, write_tiny_hf

REPORT = {
    "tokens_per_second",
    "prompt_tokens_per_second",
    "target_forwards",
    "mean_accepted_length",
    "acceptance_by_depth",
    "seconds",
    "drafters",
}


def answer(*arguments: object, input: bytes = b"") -> dict[str, object]:
    """What `--json` prints."""
    done = forerun("generate", "--json", *arguments, input=input)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"\n") == 1
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_text_to_stdout_and_one_line_to_stderr(tiny: Path) -> None:
    done = forerun("generate", "-m", tiny, "hello", "--max-tokens", 20)
    assert done.returncode == 0
    assert done.stdout.decode() == answer("-m", tiny, "hello", "--max-tokens", 20)["text"]
    assert re.fullmatch(
        r"forerun: 20 tokens, [\d.]+ tokens/s, mean accepted length \d\.\d\d, (drafter \w+|none drafted),"
        r" prompt \d+ tokens at \d+ tokens/s, finish: length\n",
        done.stderr.decode(),
    )


def test_json(tiny: Path) -> None:
    fixed = ("--drafter", "lookup", "--draft-tokens", 4)  # so that guesses are verified, whatever they cost
    found = answer("-m", tiny, "hello", "--max-tokens", 30, "--seed", 7, *fixed)
    assert set(found) == {"text", "tokens", "finish_reason", "prompt_tokens", "seed", "report"}
    tokens, report = found["tokens"], found["report"]
    assert isinstance(tokens, list)
    assert isinstance(report, dict)
    assert len(tokens) == 30
    assert all(isinstance(token, int) for token in tokens)
    assert (found["finish_reason"], found["seed"]) == ("length", 7)
    assert set(report) == REPORT
    assert {"draft", "verify", "choose", "other"} <= set(report["seconds"])
    assert 0 < report["target_forwards"] <= 30
    assert report["mean_accepted_length"] == pytest.approx(30 / report["target_forwards"], abs=1e-3)
    assert set(report["drafters"]["lookup"]) == {"drafted", "accepted"}


def test_no_drafter_in_the_report_of_plain_decoding(tiny: Path) -> None:
    report = answer("-m", tiny, "hello", "--max-tokens", 5, "--drafter", "none")["report"]
    assert isinstance(report, dict)
    assert (report["target_forwards"], report["mean_accepted_length"], report["drafters"]) == (5, 1.0, {})


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--temperature", "1.3", "--seed", "3"],
        ["--temperature", "0.7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.02", "--seed", "5"],
        ["--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.1"],
        ["--raw", "--dtype", "bf16", "--kv", "f32", "--threads", "1"],
        ["--dtype", "q4", "--kv", "q8", "--kernels", "portable"],
    ],
)
def test_a_drafter_changes_no_byte(tiny: Path, options: list[str]) -> None:
    prompt = "the return of the return of the return of the"
    texts = {
        forerun("generate", "-m", tiny, prompt, "--max-tokens", 120, "--drafter", drafter, *options).stdout
        for drafter in ("none", "lookup", "auto")
    }
    assert len(texts) == 1
    assert texts.pop()


def test_a_cascade_with_plus_is_one_with_commas(tiny: Path) -> None:
    options = ("-m", tiny, "hello", "--max-tokens", 30, "--draft-tokens", 4, "--drafter")
    plus, comma = (answer(*options, f"lookup{sign}skip:1")["report"] for sign in "+,")
    assert isinstance(plus, dict)
    assert isinstance(comma, dict)
    assert "skip" in plus["drafters"]
    assert plus["drafters"] == comma["drafters"]


@pytest.mark.parametrize("drafter", ["none", "auto"])
def test_nothing_drafted_is_said(tiny: Path, drafter: str) -> None:
    done = forerun(
        "generate", "-m", tiny, "hello", "--max-tokens", 5, "--draft-tokens", 0, "--drafter", drafter
    )
    assert b", none drafted, " in done.stderr


def test_standard_input_is_the_prompt_as_it_is(tiny: Path) -> None:
    prompt = "  naïve café — 日本語 😀\n\ttab\n"
    given = answer("-m", tiny, "--max-tokens", 8, "-", input=prompt.encode())
    typed = answer("-m", tiny, "--max-tokens", 8, prompt)
    assert (given["tokens"], given["prompt_tokens"]) == (typed["tokens"], typed["prompt_tokens"])


def test_a_prompt_may_begin_with_a_dash(tiny: Path) -> None:
    options = ["-m", tiny, "--max-tokens", 4]
    assert answer(*options, "--", "-x")["tokens"] == answer(*options, "-", input=b"-x")["tokens"]


def test_chat_template_unless_raw(tiny: Path) -> None:
    assert answer("-m", tiny, "abc", "--max-tokens", 1, "--raw")["prompt_tokens"] == 3
    chat = answer("-m", tiny, "abc", "--max-tokens", 1)["prompt_tokens"]
    written = "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"
    assert chat == answer("-m", tiny, written, "--max-tokens", 1, "--raw")["prompt_tokens"]


def test_without_a_chat_template_the_prompt_is_continued(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "base.gguf", chat=False)
    done = forerun("generate", "-m", model, "abc", "--max-tokens", 3)
    note, summary = done.stderr.decode().splitlines()
    assert note == "forerun: this model has no chat template: it continues the prompt"
    assert summary.startswith("forerun: 3 tokens")
    assert done.stdout == forerun("generate", "-m", model, "abc", "--max-tokens", 3, "--raw").stdout


def test_a_folder_gives_what_the_same_file_gives(tiny: Path, tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "tiny", shards=2)
    options = ["hello", "--max-tokens", 40]
    assert answer("-m", folder, *options)["tokens"] == answer("-m", tiny, *options)["tokens"]


def test_ends(tiny: Path) -> None:
    options = ["-m", tiny, "hello", "--max-tokens", 60]
    whole = answer(*options)
    text, tokens = str(whole["text"]), whole["tokens"]
    assert isinstance(tokens, list)
    middle = text[20:24]
    stopped = answer(*options, "--stop", middle)
    assert (stopped["text"], stopped["finish_reason"]) == (text[: text.index(middle)], "stop")
    at = tokens.index(tokens[30])
    stopped = answer(*options, "--stop-token", tokens[30])
    assert (stopped["tokens"], stopped["finish_reason"]) == (tokens[: at + 1], "stop")
    full = answer("-m", tiny, "hello", "--context", 50, "--ignore-end")
    assert full["finish_reason"] == "context"
    assert isinstance(full["tokens"], list)
    assert len(full["tokens"]) + int(str(full["prompt_tokens"])) == 50


def test_tokens_banned_allowed_and_biased(tiny: Path) -> None:
    options = ["-m", tiny, "hello", "--max-tokens", 20]
    first = answer(*options)["tokens"]
    assert isinstance(first, list)
    banned = answer(*options, "--banned-token", first[0])["tokens"]
    assert isinstance(banned, list)
    assert first[0] not in banned
    allowed = answer(*options, "--allowed-token", 65, "--allowed-token", 66)["tokens"]
    assert isinstance(allowed, list)
    assert set(allowed) <= {65, 66}
    assert answer(*options, "--logit-bias", "67=1000")["tokens"] == [67] * 20
    assert answer(*options, "--logit-bias", "67=1000", "--logit-bias", "67=0")["tokens"] == first


def test_log_probabilities(tiny: Path) -> None:
    found = answer("-m", tiny, "hello", "--max-tokens", 5, "--logprobs", 3)
    logprobs = found["logprobs"]
    assert isinstance(logprobs, list)
    assert [entry["token"] for entry in logprobs] == found["tokens"]
    for entry in logprobs:
        assert [sorted(top) for top in entry["top"]] == [["logprob", "token"]] * 3
        assert entry["top"][0] == {"token": entry["token"], "logprob": entry["logprob"]}
    done = forerun("generate", "-m", tiny, "hello", "--logprobs", 3)
    assert done.returncode == 2
    assert "--json" in error_line(done)


def test_answers_that_follow_a_form(tiny: Path, tmp_path: Path) -> None:
    options = ["-m", tiny, "hello", "--max-tokens", 60, "--temperature", 1, "--seed", 2]
    assert re.fullmatch("[ab]{5}", str(answer(*options, "--regex", "[ab]{5}")["text"]))
    schema = tmp_path / "schema.json"
    number = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]}
    schema.write_text(json.dumps({**number, "additionalProperties": False}))
    no_space = [word for byte in b" \n\r\t" for word in ("--banned-token", byte)]
    found = answer(*options, "--json-schema", f"@{schema}", *no_space)
    assert found["text"] in ('{"n":1}', '{"n":22}')
    assert found["finish_reason"] == "stop"
    assert answer(*options, "--grammar", 'root ::= "yes" | "no"')["text"] in ("yes", "no")


def test_the_seed_drawn_is_told(tiny: Path) -> None:
    options = ["-m", tiny, "hello", "--max-tokens", 20, "--temperature", 1]
    drawn = answer(*options)
    assert answer(*options, "--seed", drawn["seed"])["tokens"] == drawn["tokens"]
    assert answer(*options)["seed"] != drawn["seed"]


def test_rejection(tiny: Path) -> None:
    options = ["-m", tiny, "hello", "--max-tokens", 20, "--temperature", 1, "--seed", 1]
    found = answer(*options, "--acceptance", "rejection")
    assert found["tokens"] == answer(*options, "--acceptance", "rejection")["tokens"]


@pytest.mark.parametrize("arch", ["mistral", "qwen2", "qwen3"])
def test_families(tmp_path: Path, arch: str) -> None:
    tiny = Tiny(arch, tied=arch == "qwen2")
    file, folder = write_tiny_gguf(tmp_path / "m.gguf", tiny), write_tiny_hf(tmp_path / "m", tiny)
    options = ["hello", "--max-tokens", 10]
    assert answer("-m", file, *options)["tokens"] == answer("-m", folder, *options)["tokens"]


@pytest.mark.parametrize(
    "quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
)
def test_kinds(tmp_path: Path, quant: str) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", quant=quant)
    done = forerun("generate", "-m", model, "hello", "--max-tokens", 10)
    assert done.returncode == 0
    assert done.stderr.startswith(b"forerun: 10 tokens")
