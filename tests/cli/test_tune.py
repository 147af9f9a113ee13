"""`forerun tune`, and what is used afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import forerun as package
from forerun.bench import tuner
from forerun.bench.contest import Written
from forerun.bench.workloads import WorkloadPrompt
from forerun.cli.tune import Search, Setting
from forerun.core.report import Report
from forerun.sampling.params import SamplingParams
from forerun.tuning import Choice, forget_choice, keep_choice, known_choice
from support.program import error_line, forerun


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_chosen_is_kept_and_used(tiny: Path) -> None:
    quick = ("--max-tokens", 16, "--seconds", 10, "--draft-tokens", "auto,3")
    start = time.monotonic()
    done = forerun("tune", "-m", tiny, *quick, "--drafters", "lookup,lookup+skip:1", "--threads", 1, "--json")
    assert time.monotonic() - start < 60
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert {(row["drafter"], row["draft_tokens"]) for row in found["drafters"]} == {
        ("none", None), ("lookup", "auto"), ("lookup", 3), ("lookup,skip:1", "auto"), ("lookup,skip:1", 3),
    }  # fmt: skip
    assert [setting["threads"] for setting in found["settings"]] == [1]
    choice = known_choice(tiny)
    assert choice is not None
    assert found["choice"]["drafter"] == choice.drafter
    assert (choice.share is None) == (choice.acceptance is None) == (choice.drafter == "none")
    assert package.load(str(tiny)).backend.threads == 1  # type: ignore[attr-defined]
    assert forerun("tune", "-m", tiny, "--reset").returncode == 0
    assert known_choice(tiny) is None


def test_auto_stands_for_the_choice(tiny: Path) -> None:
    params = SamplingParams(max_tokens=40, ignore_end=True)
    plain = package.load(str(tiny), drafter="none").generate("hello", params)
    keep_choice(tiny, Choice("skip:1", 2, 1, "auto", 0.5))
    engine = package.load(str(tiny))
    tuned = engine.generate("hello", params)
    assert set(tuned.report.drafters) == {"skip"}
    assert len(tuned.report.depths) == 2
    assert tuned.tokens == plain.tokens
    assert set(engine.generate("hello", params, drafter="lookup").report.drafters) <= {"lookup"}
    assert not package.load(str(tiny), tuned=False).generate("hello", params).report.drafters.get("skip")
    done = forerun("generate", "-m", tiny, "hello", "--max-tokens", 20, "--json")
    assert set(json.loads(done.stdout)["report"]["drafters"]) == {"skip"}


def plan(*arguments: object) -> dict[str, object]:
    done = forerun("plan", *arguments, "--memory", "1GB", "--bandwidth", 10, "--json")
    assert done.returncode == 0
    found: dict[str, object] = json.loads(done.stdout)
    return {name: found[name] for name in ("drafters", "dtype", "acceptance", "acceptance_from")}


def test_plans_are_of_the_choice(tiny: Path) -> None:
    assumed = {"dtype": "auto", "acceptance": 0.7, "acceptance_from": "assumed"}
    keep_choice(tiny, Choice("lookup,skip:1", 2, 1, "q8", 0.5))
    tuned = {"drafters": ["lookup", "skip:1"], "acceptance": 0.5, "acceptance_from": "measured by tune"}
    assert plan("-m", tiny) == {**tuned, "dtype": "q8"}
    assert plan("-m", tiny, "--dtype", "bf16") == {**tuned, "dtype": "bf16"}
    assert plan("-m", tiny, "--drafter", "lookup+skip:1") == {**tuned, "dtype": "q8"}
    # measured for others, it says nothing of these
    assert plan("-m", tiny, "--drafter", "skip:1") == {**assumed, "drafters": ["skip:1"], "dtype": "q8"}
    assert plan("-m", tiny, "--device", "gpu") == {**assumed, "drafters": ["suffix"]}
    keep_choice(tiny, Choice("draft:/gone.gguf", acceptance=0.5))
    assert plan("-m", tiny) == {**assumed, "drafters": ["suffix"]}
    keep_choice(tiny, Choice(dtype="q3"))
    assert "no dtype 'q3'" in error_line(forerun("plan", "-m", tiny))
    keep_choice(tiny, Choice("none"))
    assert plan("-m", tiny)["drafters"] == []


@pytest.mark.parametrize(("count", "words"), [(1, "1 thread,"), (2, "2 threads,")])
def test_one_is_no_plural(count: int, words: str) -> None:
    search = Search("m", ["lookup"], [None], ["auto"], [count], [], 8, "auto", 0.0)
    assert words in search.describe(Choice("lookup", None, count))


def test_a_choice_that_is_broken_does_not_count(tiny: Path, cache: Path) -> None:
    keep_choice(tiny, Choice("draft:/gone.gguf"))
    assert package.load(str(tiny)).generate("hello", SamplingParams(max_tokens=4)).tokens
    place = keep_choice(tiny, Choice("lookup"))
    assert place is not None
    whole = json.loads(place.read_text())
    for key, wrong in [
        ("drafter", 7),
        ("threads", 10**9),
        ("threads", True),
        ("acceptance", 2.0),
        ("share", -1.0),
    ]:
        place.write_text(json.dumps({**whole, "value": {**whole["value"], key: wrong}}))
        assert known_choice(tiny) is None
    place.write_text(json.dumps({**whole, "key": {}}))
    assert known_choice(tiny) is None
    place.write_text("{")
    assert known_choice(tiny) is None
    forget_choice(tiny)
    assert not place.exists()


def test_interrupted_it_keeps_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "tune", broken_off)
    done = forerun("tune", "-m", tiny, "--threads", 1, "--drafters", "lookup")
    assert (done.returncode, done.stderr) == (130, b"forerun: interrupted: nothing is kept\n")
    assert done.stdout.split()[:2] == [b"dtype", b"threads"]
    assert known_choice(tiny) is None


def tune(arms: Sequence[tuner.Arm], prompts: int, clock: tuner.Clock | None = None) -> tuner.Arm | None:
    """Without an engine: what writes is put in its place."""
    given = [WorkloadPrompt(str(i), "w", ()) for i in range(prompts)]
    clock = clock or tuner.Clock(60)
    return tuner.tune(None, arms, given, max_tokens=10, clock=clock, progress=lambda *_: None)  # type: ignore[arg-type]


def write_at(speeds: dict[str, float]) -> object:
    def write(engine: object, arm: tuner.Arm, ids: Sequence[int], params: SamplingParams) -> Written:
        gap = 1 / speeds[arm.drafter]
        report = Report(tokens=10, verify=10 * gap, target_forwards=10)
        return Written(list(range(10)), [gap * i for i in range(1, 11)], report)

    return write


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({"none": 1.0, "a": 1.5, "b": 2.0, "c": 0.5, "d": 0.1}, "b"),
        ({"none": 1.0, "a": 0.9, "b": 0.8, "c": 0.5, "d": 0.1}, "none"),
        ({"none": 1.0, "a": 1.001, "b": 0.8, "c": 0.5, "d": 0.1}, "none"),
    ],
)
def test_the_slower_half_drops_out(
    speeds: dict[str, float], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "_write", write_at(speeds))
    monkeypatch.setattr(tuner, "encoded", lambda engine, prompt: [1])
    arms = tuner.make_arms(["a", "b", "c", "d"], [None])
    found = tune(arms, 20)
    assert found is not None
    assert found.drafter == best
    assert [len(arm.written) for arm in arms if arm.drafter in "cd"] == [4, 4]
    assert len(arms[0].written) == 20


def test_too_little_to_choose_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_write", write_at({"none": 1.0, "a": 2.0}))
    monkeypatch.setattr(tuner, "encoded", lambda engine, prompt: [1])
    for count in (tuner.LEAST_PROMPTS - 1, tuner.LEAST_PROMPTS):
        arms = tuner.make_arms(["a"], [None])
        found = tune(arms, count)
        assert found is (arms[1] if count == tuner.LEAST_PROMPTS else None)


class Time:
    """A clock that only answers move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def write(self, engine: object, arm: tuner.Arm, ids: Sequence[int], params: SamplingParams) -> Written:
        self.now += 1.0
        return write_at({"none": 1.0, "a": 1.5, "b": 2.0})(engine, arm, ids, params)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (1000, [20, 4, 20, 4, 12]),  # half of the ways drop out after 4 prompts, and half of these after 12
        (30, [12, 4, 12, 0, 0]),
        (16, [7, 7, 0, 0, 0]),
        (12, [6, 6, 0, 0, 0]),
        (8, [1, 0, 0, 0, 0]),
    ],
)
def test_with_little_time_fewer_take_part(
    seconds: float, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least number of prompts comes first; where there is no time for that, it shows at once."""
    time = Time()
    monkeypatch.setattr(tuner, "monotonic", time)
    monkeypatch.setattr(tuner, "_write", time.write)
    monkeypatch.setattr(tuner, "encoded", lambda engine, prompt: [1])
    arms, clock = tuner.make_arms(["a", "b"], [None, 3]), tuner.Clock(seconds)
    found = tune(arms, 20, clock)
    assert [len(arm.written) for arm in arms] == written
    best = max((arm for arm in arms if len(arm.written) == written[0]), key=lambda arm: arm.gain(arms[0]))
    assert found is (best if written[0] >= tuner.LEAST_PROMPTS else None)
    enough = tuner.Clock(seconds + max(0, clock.lacking()))
    assert tune(tuner.make_arms(["a", "b"], [None, 3]), 20, enough) is not None


def test_a_gain_within_the_noise_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([2.0, 0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.6])

    def write(engine: object, arm: tuner.Arm, ids: Sequence[int], params: SamplingParams) -> Written:
        speed = 1.0 if arm.plain or params.max_tokens == 4 else next(speeds)
        return write_at({arm.drafter: speed})(engine, arm, ids, params)  # type: ignore[operator,no-any-return]

    monkeypatch.setattr(tuner, "_write", write)
    monkeypatch.setattr(tuner, "encoded", lambda engine, prompt: [1])
    arms = tuner.make_arms(["a"], [None])
    found = tune(arms, 8)
    assert arms[1].gain(arms[0]) > tuner.CLEARLY
    assert found is arms[0]


def test_too_little_time_keeps_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner.Clock, "ways", lambda clock, prompts: 0.5)
    monkeypatch.setattr(tuner.Clock, "lacking", lambda clock: 23.4)
    done = forerun("tune", "-m", tiny, "--seconds", 20, "--threads", 1, "--drafters", "lookup")
    assert done.returncode == 2
    assert error_line(done).endswith(
        "it takes 6 prompts, and there was no time for as many; give --seconds 44"
    )
    assert [line.split()[0] for line in done.stdout.decode().splitlines()[4:]] == ["none"]
    assert known_choice(tiny) is None


def test_too_few_prompts_keep_nothing(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello"}\n' * 2)
    quick = (
        "--max-tokens",
        8,
        "--threads",
        1,
        "--drafters",
        "lookup",
        "--draft-tokens",
        3,
        "--prompts",
        file,
    )
    done = forerun("tune", "-m", tiny, *quick)
    assert done.returncode == 2
    assert "nothing is kept: 2 prompts of the 6 that it takes; give more" in error_line(done)
    assert known_choice(tiny) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drafters", ""), "--drafters names nothing"),
        (("--drafters", "none,none"), "--drafters names none but plain decoding"),
        (("--drafters", "oracle"), "no drafter 'oracle'"),
        (("--draft-tokens", "many"), "--draft-tokens: 'many' is no number"),
        (("--threads", "0"), "--threads: '0' is no number"),
        (("--dtypes", "q3"), "no dtype 'q3'"),
        (("--prompts", "nowhere.jsonl"), "cannot read prompts"),
    ],
)
def test_bad_input(tiny: Path, arguments: tuple[str, ...], says: str) -> None:
    done = forerun("tune", "-m", tiny, *arguments)
    assert done.returncode == 2
    assert says in error_line(done)


def test_a_busy_moment_does_not_choose_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search("", [], [], ["auto"], [1, 2], [], 1, "auto", 0.0)
    monkeypatch.setattr(Search, "_measure", lambda self, dtype, threads: Setting(dtype, threads, 4.0, 5.0))
    assert search._again(Setting("auto", 2, 3.0, 19.0)) == Setting("auto", 2, 3.0, 5.0)
