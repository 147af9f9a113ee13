"""`forerun bench`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forerun.bench import contest
from forerun.cli import app
from forerun.models.shipped import shipped_heads
from support.program import error_line, forerun

QUICK = ("--prompts", 1, "--max-tokens", 12)

STUB = f"""#!{sys.executable}
import json, sys
if sys.argv[1] == "-c":
    print("True False False")
    sys.exit()
described = json.loads(sys.stdin.readline())
print(json.dumps({{"version": "9.9"}}), flush=True)
for line in sys.stdin:
    count = json.loads(line)["max_tokens"]
    tokens = [7] * count
    if described["mode"] == "lookup":
        tokens[-1] = 8
    times = [0.5 + 0.01 * i for i in range(count)]
    print(json.dumps({{"tokens": tokens, "times": times, "peak_bytes": 10**8}}), flush=True)
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A Python that has llama.cpp: 100 tokens a second, and a lookup that changes the text."""
    path = tmp_path / "python"
    path.write_text(STUB)
    path.chmod(0o755)
    return path


class Tags(HTMLParser):
    """The tags of a page that are open, and everything it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [name for name, _ in attrs if name in ("src", "href")]
        if tag not in ("meta", "html", "title"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("html", "title"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_json_is_as_promised(tiny: Path, tmp_path: Path) -> None:
    done = forerun(
        "bench", "-m", tiny, *QUICK, "--drafters", "lookup,suffix,lookup+skip:1",
        "--workloads", "code,creative", "--temperature", "0,1.5", "--json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert set(found["machine"]) >= {"processor", "cores", "memory_gb", "system", "kernels"}
    assert set(found["versions"]) == {"forerun", "python"}
    assert (found["model"], found["complete"]) == ("tiny.gguf", True)
    assert str(tmp_path.parent) not in json.dumps(found)  # says nothing of where things are kept
    runs = found["runs"]
    assert len(runs) == 2 * 2 * 4
    for run in runs:
        assert set(run) >= {
            "workload", "engine", "drafter", "temperature", "tokens", "tokens_per_second", "speedup",
            "mean_accepted_length", "acceptance_by_depth", "equal",
        }  # fmt: skip
        assert run["equal"]
        assert run["mean_accepted_length"] >= 1
        if run["drafter"] == "none":
            assert (run["speedup"], run["mean_accepted_length"], run["acceptance_by_depth"]) == (1, 1, [])
    assert [point["n"] for point in found["cost"]] == [1, 2, 4, 8, 12, 16]


def test_every_drafter(tiny: Path) -> None:
    """That the model can use: nothing of the package was made for this one."""
    done = forerun(
        "bench", "-m", tiny, *QUICK, "--drafters", "all,suffix+skip:1", "--workloads", "json", "--json"
    )
    assert done.returncode == 0
    drafters = [run["drafter"] for run in json.loads(done.stdout)["runs"]]
    assert drafters == ["none", "auto", "suffix", "lookup", "skip", "suffix,skip:1"]


@pytest.mark.model
def test_every_drafter_of_the_package(tmp_path: Path) -> None:
    done = forerun("bench", *QUICK, "--drafters", "all", "--workloads", "json", "--json")
    assert done.returncode == 0
    drafters = {run["drafter"] for run in json.loads(done.stdout)["runs"]}
    heads = {f"head:{name}" for name in shipped_heads()}
    assert len(heads) >= 2
    assert drafters == {"none", "auto", "suffix", "lookup", "skip", "draft:smollm2-135m/draft", *heads}


def test_a_simulated_drafter_is_called_one_everywhere(tiny: Path, tmp_path: Path) -> None:
    done = forerun(
        "bench", "-m", tiny, *QUICK, "--workloads", "code", "--simulate-acceptance", 1, "--ignore-end",
        "--json", tmp_path / "out.json", "--html", tmp_path / "out.html",
    )  # fmt: skip
    assert done.returncode == 0
    assert b"simulated:1" in done.stdout
    runs = {run["drafter"]: run for run in json.loads((tmp_path / "out.json").read_text())["runs"]}
    assert runs["simulated:1"]["simulated"]
    assert not runs["auto"]["simulated"]
    assert set(runs["simulated:1"]["acceptance_by_depth"]) <= {1}
    assert {run["tokens"] for run in runs.values()} == {12}
    page = Tags()
    page.feed((tmp_path / "out.html").read_text())
    assert page.open == []
    assert page.loads == []
    assert "simulated:1" in page.text
    assert "simulated: the drafter was told the answer" in page.text
    assert "width=device-width" in (tmp_path / "out.html").read_text()
    for part in (
        "Tokens a second",
        "Acceptance by depth",
        "Where the time goes",
        "Cost of a forward",
        "Memory",
    ):
        assert part in page.text
    cost = json.loads((tmp_path / "out.json").read_text())["cost"]  # measured once for both
    assert all(f"{point['ms']:.2f} ms" in page.text for point in cost)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\n", "is no Python that can tell which engines it has"),
        ("#!/bin/sh\nexit 1\n", "is no Python that can tell which engines it has"),
        ("#!/bin/sh\necho a b c\n", "is no Python that can tell which engines it has"),
        ("#!/no/such/program\n", "No such file or directory"),
    ],
)
def test_peers_need_a_python(tiny: Path, tmp_path: Path, script: str, says: str) -> None:
    path = tmp_path / "no-python"
    path.write_text(script)
    path.chmod(0o755)
    done = forerun("bench", "-m", tiny, *QUICK, "--peers", "all", "--peer-python", path)
    assert done.returncode == 2
    said = error_line(done)
    assert str(path) in said
    assert says in said
    assert "importlib" not in said


def test_peers_are_compared_with_their_own_plain_text(tiny: Path, stub: Path, tmp_path: Path) -> None:
    done = forerun(
        "bench", "-m", tiny, *QUICK, "--workloads", "json", "--peers", "all", "--peer-python", stub,
        "--json", tmp_path / "out.json", "--html", tmp_path / "out.html",
    )  # fmt: skip
    assert done.returncode == 0
    assert b"x llama.cpp's best (" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    runs = {(run["engine"], run["drafter"]): run for run in found["runs"]}
    assert runs["llama.cpp", "none"]["tokens_per_second"] == pytest.approx(100)
    assert runs["llama.cpp", "none"]["equal"]
    assert not runs["llama.cpp", "lookup"]["equal"]
    assert runs["llama.cpp", "none"]["mean_accepted_length"] is None
    assert found["versions"]["llama.cpp"] == "9.9"
    assert {share["name"] for share in found["memory"]} >= {"llama.cpp plain", "llama.cpp lookup"}
    (against,) = found["against_peers"]
    assert (against["workload"], against["peer"]) == ("json", "llama.cpp")
    page = Tags()
    page.feed((tmp_path / "out.html").read_text())
    assert (page.open, page.loads) == ([], [])
    assert f"{against['speedup']:.2f}x" in page.text
    assert "9.9" in page.text  # its version


def test_a_peer_that_fails_is_left_out_and_the_rest_is_kept(tiny: Path, stub: Path, tmp_path: Path) -> None:
    stub.write_text(
        STUB.replace(
            'if described["mode"] == "lookup":', 'if described["mode"] == "lookup": sys.exit()\n    if 0:'
        )
    )
    done = forerun(
        "bench", "-m", tiny, *QUICK, "--workloads", "json", "--peers", "llama.cpp", "--peer-python", stub,
        "--json",
    )  # fmt: skip
    assert done.returncode == 0
    assert b"left out from then on: llama.cpp (lookup) ended without an answer" in done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["engine"], run["drafter"]) for run in runs] == [
        ("forerun", "none"), ("forerun", "auto"), ("llama.cpp", "none"),
    ]  # fmt: skip


def test_prompts_from_a_file(tiny: Path, tmp_path: Path) -> None:
    kinds = ("lists", "poems\u001b[2J\nof old")
    lines = [{"id": i, "category": kinds[i % 2], "turns": [f"write {i}"]} for i in range(6)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    done = forerun("bench", "-m", tiny, "--prompts", 2, "--max-tokens", 8, "--workloads", file, "--json")
    runs = json.loads(done.stdout)["runs"]
    assert {(run["workload"], run["prompts"]) for run in runs} == {("lists", 2), ("poems?[2J of old", 2)}


def test_interrupted_it_writes_what_was_done(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = contest.contest

    def broken_off(*arguments: Any, **options: Any) -> Iterator[contest.Sample]:
        samples = whole(*arguments, **options)
        yield next(samples)
        yield next(samples)
        raise KeyboardInterrupt

    monkeypatch.setattr(contest, "contest", broken_off)
    out = tmp_path / "out.json"
    assert (
        app.run(["bench", "-m", str(tiny), *map(str, QUICK), "--workloads", "code", "--json", str(out)])
        == 130
    )
    told = capsys.readouterr()
    assert "forerun auto" in told.out
    assert re.search(r"forerun: interrupted: 2 of \d+ answers written\n$", told.err)
    found = json.loads(out.read_text())
    assert not found["complete"]
    assert [run["drafter"] for run in found["runs"]] == ["none", "auto"]


@pytest.mark.parametrize("before", [None, "of an earlier run"])
def test_interrupted_before_anything_was_done_it_leaves_files_alone(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    def broken_off(*_: Any, **__: Any) -> Iterator[contest.Sample]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(contest, "contest", broken_off)
    out = tmp_path / "out"
    out.mkdir()
    json_out, html_out = out / "a.json", out / "a.html"
    if before is not None:
        json_out.write_text(before)
    outputs = ["--json", str(json_out), "--html", str(html_out)]
    assert app.run(["bench", "-m", str(tiny), "--workloads", "code", *outputs]) == 130
    assert [path.name for path in out.iterdir()] == ([] if before is None else ["a.json"])
    assert before is None or json_out.read_text() == before


def test_no_file_is_written_over(tiny: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text('{"prompt": "hello"}\n')
    for arguments in (
        ("--json", out, "--html", out),
        ("--workloads", f"code,{prompts}", "--html", tmp_path / ".." / tmp_path.name / "prompts.jsonl"),
    ):
        done = forerun("bench", "-m", tiny, *QUICK, *arguments)
        assert done.returncode == 2
        assert b"named twice" in done.stderr
    assert prompts.read_text() == '{"prompt": "hello"}\n'
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workloads", "poetry"), "no workload 'poetry'"),
        (("--workloads", "nowhere.jsonl"), "cannot read prompts"),
        (("--workloads", ","), "names nothing"),
        (("--workloads", "rag"), "no prompt with 160 tokens more fits a context of 1024"),
        (("--temperature", "hot"), "no list of numbers"),
        (("--temperature", "-1"), "temperature is -1.0; it must be 0, or between"),
        (("--drafters", "oracle"), "no drafter 'oracle'"),
        (("--peers", "gpt"), "no peer 'gpt'"),
        (("--peers", "all", "--peer-python", "/nowhere/python"), "cannot run"),
        (("--json", "/nowhere/out.json"), "cannot write"),
    ],
)
def test_bad_input(tiny: Path, arguments: tuple[str, ...], says: str) -> None:
    done = forerun("bench", "-m", tiny, *arguments)
    assert done.returncode == 2
    assert says in error_line(done)
