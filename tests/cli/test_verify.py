"""`forerun verify`: says equal only where it is, and names the first token that is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.answers import Stream
from forerun.bench import verify as checks
from forerun.cli.app import run
from forerun.engine import Engine
from forerun.sampling.params import SamplingParams
from support.program import error_line, forerun

ONE = ["--max-tokens", "24", "--limit", "1"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": 7, "category": "code", "turns": ["return the other", "again"]},
        {"prompt": "and"},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return file


def test_equal(tiny: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["verify", "-m", str(tiny), "--prompts", str(prompts), "--max-tokens", "24", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    assert found["equal"]
    assert found["compared"] == 8  # two prompts, two drafters, two temperatures
    assert {c["prompt"] for c in found["comparisons"]} == {"7", "2"}
    assert found["tokens"] > 0


def test_each_drafter_and_temperature_once(
    tiny: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--drafter", "skip:1,lookup+skip:1,skip:1", "--temperature", "0,1,0.0,1.0", "--raw"]
    assert run(["verify", "-m", str(tiny), "--prompts", str(prompts), *options, *ONE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": 1 prompt,")[0] for line in lines] == [
        "drafter skip:1, temperature 0",
        "drafter skip:1, temperature 1",
        "drafter lookup+skip:1, temperature 0",
        "drafter lookup+skip:1, temperature 1",
    ]


def test_a_plus_in_a_path_is_no_cascade(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--drafter", "suffix+draft:/c++/a+b.gguf,suffix"]) == 2
    assert "there is no draft model '/c++/a+b.gguf'" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [False, True])
def test_a_difference_is_found(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut: bool
) -> None:
    honest = checks._write

    def wrong(
        engine: Engine, ids: list[int], params: SamplingParams, drafter: str, after: Stream | None = None
    ) -> Any:
        written = honest(engine, ids, params, drafter, after)
        if drafter == "none":
            return written
        tokens = list(written.result.tokens)
        tokens[3] = (tokens[3] + 1) % 200
        result = replace(written.result, tokens=tokens[:3] if cut else tokens)
        return SimpleNamespace(result=result, target=written.target)

    monkeypatch.setattr(checks, "_write", wrong)
    assert run(["verify", "-m", str(tiny), "--temperature", "0", *ONE]) == 1
    error = capsys.readouterr().err
    assert "token 3 of the answer" in error
    assert ("the end" in error) == cut
    assert ("logit margin" in error) == (not cut)
    assert error.count("\n") == 1


def test_a_run_that_was_broken_off_is_gone_on_with(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = prompts.parent / "record.jsonl"
    arguments = ["verify", "-m", str(tiny), "--prompts", str(prompts), "--max-tokens", "9", "--json"]
    arguments += ["--draft-tokens", "3", "--record", str(record), "--drafter", "suffix,lookup+suffix"]
    assert run(arguments) == 0
    whole = json.loads(capsys.readouterr().out)
    lines = record.read_text().split("\n")
    assert len(lines) == 4  # settings, two prompts, and what is behind the last line
    record.write_text("\n".join(lines[:2]) + "\n" + lines[2][:-9])  # killed while it wrote
    asked = []
    honest = checks._write

    def noted(engine: Engine, ids: list[int], *others: Any) -> Stream:
        asked.append(ids)
        return honest(engine, ids, *others)

    monkeypatch.setattr(checks, "_write", noted)
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == whole
    assert len(asked) == 6  # one prompt: two temperatures, plain and two drafters
    assert len({tuple(ids) for ids in asked}) == 1
    assert run([*arguments, "--seed", "1"]) == 2
    assert "other settings" in capsys.readouterr().err
    damaged = json.dumps({"place": 0, "prompt": json.loads(lines[1])["prompt"], "comparisons": [{}]})
    for text in ("[]\n{}\n", "[" * 100_000 + "\n", f"{lines[0]}\n{damaged}\n"):
        record.write_text(text)
        assert run(arguments) == 2
        assert "cannot be used as a record" in capsys.readouterr().err or text == "[]\n{}\n"


@pytest.mark.parametrize("text", ["a note without a last newline", '{"a": 1}', "\x00" * 5000])
def test_what_is_no_record_stays_as_it_is(tiny: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine"
    path.write_text(text)
    done = forerun("verify", "-m", tiny, *ONE, "--record", path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "cannot be used as a record: it holds something else" in error_line(done)
    assert path.read_text() == text


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/null"])
def test_a_record_is_a_file(tiny: Path, path: str) -> None:
    done = forerun("verify", "-m", tiny, *ONE, "--record", path)
    assert "cannot be used as a record: it is no file" in error_line(done)


@pytest.mark.parametrize("recorded", [False, True])
def test_interrupted_it_tells_how_far_it_came(
    tiny: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recorded: bool,
) -> None:
    record = prompts.parent / "record.jsonl"
    honest, begun = checks.compare, []

    def broken_off(engine: Engine, prompt: Any, *others: Any, **options: Any) -> Any:
        begun.append(prompt)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return honest(engine, prompt, *others, **options)

    monkeypatch.setattr(checks, "compare", broken_off)
    options = ["--record", str(record)] if recorded else []
    assert run(["verify", "-m", str(tiny), "--prompts", str(prompts), "--max-tokens", "9", *options]) == 130
    noted = f"; noted in {record}" if recorded else ""
    told = f"forerun: interrupted: 1 of 2 prompts compared, none differs{noted}\n"
    assert capsys.readouterr() == ("", told)


def distribution(model: Path, prompts: Path, draws: int) -> list[str]:
    """A check of the first prompt's answers."""
    options = ["--prompts", str(prompts), "--limit", "1", "--raw", "--draws", str(draws)]
    return ["verify", "-m", str(model), "--distribution", *options]


def test_distribution(endless: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*distribution(endless, prompts, 300), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(0 < d["p_value"] <= 1 for d in found["distributions"])


def test_a_distribution_of_guesses_that_are_right(
    endless: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is its own draft model; what is told says so, and that another's guesses never were right."""
    assert run([*distribution(endless, prompts, 200), "--drafter", f"draft:{endless},lookup"]) == 0
    shown = capsys.readouterr()
    itself, lookup = shown.out.splitlines()[0], shown.out.splitlines()[-1]
    right, drafted = map(int, re.findall(r"(\d+) of (\d+) guesses right", itself)[0])
    assert 0 < right <= drafted
    assert ("0 of" in lookup) == ("drafter lookup: none of its guesses" in shown.err)


def test_a_wrong_distribution_is_found(
    endless: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = checks._write

    def biased(
        engine: Engine, ids: list[int], params: SamplingParams, drafter: str, after: Stream | None = None
    ) -> Stream:
        return honest(engine, ids, replace(params, temperature=0.7), drafter, after)

    monkeypatch.setattr(checks, "_write", biased)
    assert run(distribution(endless, prompts, 600)) == 1
    assert "not drawn from the target's distribution" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("not json", []),
        ('{"turns": []}', []),
        ("[1]", []),
        ('{"prompt": "\\ud800"}', []),
        ("", []),
        ('{"prompt": "and"}', ["--temperature", "warm"]),
        ('{"prompt": "and"}', ["--drafter", "nobody"]),
        ('{"prompt": "and"}', ["--drafter", ","]),
        ('{"prompt": "and"}', ["--drafter", "lookup+"]),
        ('{"prompt": "and"}', ["--drafter", "lookup+nobody"]),
        ('{"prompt": "and"}', ["--drafter", "none+lookup"]),
        ('{"prompt": "and"}', ["--temperature", "-1"]),
        ('{"prompt": "and"}', ["--seed", "-1"]),
        ('{"prompt": "and"}', ["--distribution", "--temperature", "0"]),
    ],
)
def test_bad_input(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, arguments: list[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line + "\n")
    assert run(["verify", "-m", str(tiny), "--prompts", str(file), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forerun: error: ")
    assert error.count("\n") == 1
