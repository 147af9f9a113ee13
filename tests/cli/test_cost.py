"""`forerun cost`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from forerun.bench import cost
from forerun.bench.cost import Measurement, Timing
from support.program import error_line, forerun
from support.tiny import Tiny, write_tiny_gguf, write_tiny_hf

QUICK = ("--rounds", "5", "--context", "20", "--prefill", "32")
HAS_LLAMA_CPP = importlib.util.find_spec("llama_cpp") is not None


def test_json(tiny: Path) -> None:
    done = forerun("cost", "-m", tiny, "--widths", "1,2,4-6", *QUICK, "--json", "--threads", 1)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert (found["model"], found["dtype"], found["threads"], found["context"]) == (str(tiny), "auto", 1, 20)
    assert [point["n"] for point in found["curve"]] == [1, 2, 4, 5, 6]
    for point in found["curve"]:
        assert 0 < point["ms_p10"] <= point["ms"] <= point["ms_p90"]
        assert set(point["stages"]) == {"linear", "attention", "head", "other", "python"}
    weights = sum(found["weight_bytes"].values())
    assert found["kv_bytes"] == 20 * 2 * 2 * 2 * 32 * 2  # tokens, layers, keys and values, heads, sizes, f16
    assert found["bytes_per_forward"] == weights + found["kv_bytes"]
    reached = found["bytes_per_forward"] / found["curve"][0]["ms"] / 1e6 / found["bandwidth_gb_s"]
    assert found["fraction_of_bandwidth"] == pytest.approx(reached, rel=0.02)
    assert found["prefill"]["n"] == 32
    assert found["compare"] == {}


def test_text(tiny: Path) -> None:
    done = forerun("cost", "-m", tiny, "--widths", "8", "--shape", "tree", "--dtype", "q8", *QUICK)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert "q8 1.3 MB" in lines[0]
    assert lines[3].split()[:5] == ["n", "ms", "p10", "p90", "x"]
    assert [line.split()[0] for line in lines[4:6]] == ["1", "8"]
    assert lines[6].startswith("a prompt of 32 tokens")


def test_one_is_no_plural(tiny: Path) -> None:
    one = ("--threads", 1, "--context", 1, "--prefill", 1)
    done = forerun("cost", "-m", tiny, "--widths", 1, "--rounds", 5, *one)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "1 thread; a chain after 1 token in" in text
    assert "a prompt of 1 token:" in text


@pytest.mark.parametrize("rounds", [0, 3])
def test_interrupted_it_tells_what_was_measured(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    whole = cost.Measurement._round

    def broken_off(measurement: Measurement) -> None:
        if measurement.rounds == rounds:
            raise KeyboardInterrupt
        whole(measurement)

    monkeypatch.setattr(cost.Measurement, "_round", broken_off)
    done = forerun("cost", "-m", tiny, "--widths", "1,4", *QUICK, "--json")
    assert done.returncode == 130
    assert done.stderr.decode() == f"forerun: interrupted: {rounds} of 5 rounds measured\n"
    if rounds:
        found = json.loads(done.stdout)
        assert found["rounds"] == rounds
        assert [point["n"] for point in found["curve"]] == [1, 4]
    else:
        assert done.stdout == b""


@pytest.mark.parametrize("widths", ["", "0", "a", "3-2", "1,,2", "9999", "-1", "1.5"])
def test_widths_that_are_none(tiny: Path, widths: str) -> None:
    done = forerun("cost", "-m", tiny, "--widths", widths)
    assert done.returncode == 2
    assert "--widths" in error_line(done)


def test_more_than_the_context_holds(tiny: Path) -> None:
    done = forerun("cost", "-m", tiny, "--context", 1020)
    assert done.returncode == 2
    assert "the model has 1024" in error_line(done)


def test_a_small_context_is_measured_as_far_as_it_goes(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "small.gguf", Tiny(context=100))
    found = json.loads(forerun("cost", "-m", model, "--widths", "1,16", "--rounds", "5", "--json").stdout)
    assert (found["context"], found["prefill"]["n"]) == (84, 100)


def test_a_folder_cannot_be_compared(tmp_path: Path) -> None:
    done = forerun("cost", "-m", write_tiny_hf(tmp_path / "m"), "--compare", "llama.cpp", *QUICK)
    assert done.returncode == 2
    assert "llama.cpp reads GGUF files" in error_line(done)


@pytest.mark.skipif(HAS_LLAMA_CPP, reason="llama-cpp-python is here")
def test_without_the_package_to_compare_with(tiny: Path) -> None:
    done = forerun("cost", "-m", tiny, "--compare", "llama.cpp", *QUICK)
    assert done.returncode == 2
    assert "pip install llama-cpp-python" in error_line(done)


@pytest.mark.skipif(not HAS_LLAMA_CPP, reason="llama-cpp-python is not here")
def test_compared(tiny: Path) -> None:
    done = forerun("cost", "-m", tiny, "--compare", "llama.cpp", *QUICK, "--json")
    peer = json.loads(done.stdout)["compare"]["llama.cpp"]
    assert [point["n"] for point in peer["curve"]] == [1, 2, 4, 8, 12, 16]
    assert peer["version"]


class Clockwork:
    """A subject whose forwards take as many seconds as they have rows."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def fill(self, context: int) -> None:
        self.log.append(f"{self.name} fill {context}")

    def forward(self, rows: int) -> Timing:
        self.log.append(f"{self.name} {rows}")
        return Timing(float(rows), {"half": rows / 2})

    def prefill(self, rows: int) -> Timing:
        self.log.append(f"{self.name} prefill {rows}")
        return Timing(2.0 * rows)


def test_measuring_takes_turns() -> None:
    log: list[str] = []
    measurement = Measurement([Clockwork("a", log), Clockwork("b", log)], [1, 3], context=9, prompt=5)
    measurement.run(2)
    curves = measurement.curves()
    # each is warmed up, then a round each in turns, each starting with one forward that does not count
    assert log == [
        *["a fill 9", "a 1", "a 3", "a prefill 5", "b fill 9", "b 1", "b 3", "b prefill 5"],
        *["a 1", "a 1", "a 3", "a prefill 5", "b 1", "b 1", "b 3", "b prefill 5"],
        *["b 1", "b 3", "b 1", "a 1", "a 3", "a 1"],
    ]
    for curve in curves:
        assert [(point.n, point.ms, point.stages) for point in curve.points] == [
            (1, 1000.0, {"half": 500.0}),
            (3, 3000.0, {"half": 1500.0}),
        ]
        assert curve.prompt is not None
        assert (curve.prompt.n, curve.prompt.ms) == (5, 10000.0)
