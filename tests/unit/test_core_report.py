from __future__ import annotations

import pytest

from forerun.core.report import Report


def test_counts() -> None:
    report = Report(prompt_tokens=5)
    report.step(["a", "b", ""], 2, ["a", "b", "b", "a", "b"])
    report.step([""], 1, ["a"])
    report.step([""])
    report.step(["a"], 1, ["a"] * 4)  # ends by a guess that was the end of the text
    assert report.tokens == 6
    assert report.target_forwards == 4
    assert report.mean_accepted_length == 1.5
    assert report.drafted == 10
    assert report.acceptance_by_depth == [pytest.approx(2 / 3), 1.0]
    assert (report.drafters["a"].drafted, report.drafters["a"].accepted) == (7, 2)
    assert (report.drafters["b"].drafted, report.drafters["b"].accepted) == (3, 1)


def test_speeds() -> None:
    report = Report(prefilled=10, prompt=2.0, tokens=6, draft=0.5, verify=1.0, choose=0.25, other=0.25)
    assert report.tokens_per_second == 3.0
    assert report.prompt_tokens_per_second == 5.0


def test_nothing_happened() -> None:
    report = Report()
    assert report.tokens_per_second == report.prompt_tokens_per_second == report.mean_accepted_length == 0
    assert report.as_dict()["acceptance_by_depth"] == []
    assert set(report.as_dict()) >= {
        "tokens_per_second",
        "prompt_tokens_per_second",
        "target_forwards",
        "mean_accepted_length",
        "acceptance_by_depth",
        "seconds",
        "drafters",
    }
