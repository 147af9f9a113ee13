"""`forerun plan`, and `--memory`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun import load
from forerun.models import machine
from forerun.models.outline import read_outline
from forerun.planning import make_planner
from forerun.tuning import Choice, keep_choice
from support.program import error_line, forerun
from support.tiny import Tiny, write_tiny_hf


def test_json(tiny: Path) -> None:
    done = forerun("plan", "-m", tiny, "--memory", "1GB", "--bandwidth", 10, "--acceptance", 0.5, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert (found["largest_context"], found["memory_bytes"], found["drafters"]) == (1024, 10**9, ["suffix"])
    assert [row["context"] for row in found["contexts"]] == [512, 1024]
    for row in found["contexts"]:
        parts = {part["name"]: part for part in row["parts"]}
        assert set(parts) == {"model", "suffix", "program"}
        sizes = [part["weights"] + part["kv"] + part["activations"] for part in row["parts"]]
        assert row["total_bytes"] == sum(sizes)
        assert row["fits"]
        # with free guesses, the longest chain is best: (1 - a^17) / (1 - a) tokens a step that has guesses
        expected = row["plain_tokens_per_second"] * (0.67 * (1 - 0.5**17) / 0.5 + 0.33)
        assert row["speculative_tokens_per_second"] == pytest.approx(expected, rel=0.01)


def test_what_looks_in_the_text_alone_is_silent_at_times(tiny: Path) -> None:
    for drafter, share in (("suffix", 0.67), ("suffix,lookup", 0.67), ("suffix,eagle", 1), ("skip:1", 1)):
        found = planned(tiny, "--drafter", drafter)
        assert (found["share_with_guesses"], found["share_from"]) == (share, "assumed")
    said = forerun("plan", "-m", tiny, "--bandwidth", 10, "--acceptance", 0.5).stdout.decode()
    assert "acceptance 0.50 (given), guesses in 67% of the steps (assumed)" in said


def test_how_often_there_were_guesses_where_it_was_tuned(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    keep_choice(tiny, Choice("suffix", acceptance=0.5, share=0.25))
    found = planned(tiny)
    assert (found["share_with_guesses"], found["share_from"]) == (0.25, "measured by tune")
    row = found["contexts"][0]
    expected = row["plain_tokens_per_second"] * (0.25 / 0.5 + 0.75)
    assert row["speculative_tokens_per_second"] == pytest.approx(expected, rel=0.01)
    assert planned(tiny, "--drafter", "lookup")["share_with_guesses"] == 0.67


def test_text_and_a_context_that_does_not_fit(tiny: Path) -> None:
    done = forerun("plan", "-m", tiny, "--memory", "80MB", "--bandwidth", 10, "--drafter", f"draft:{tiny}")
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[1].startswith(f"draft:{tiny}: weights")
    assert "no context fits" not in lines[2]
    done = forerun("plan", "-m", tiny, "--memory", "20MB", "--bandwidth", 10, "--context", 1000)
    assert done.returncode == 1
    assert "a context of 1000 does not fit" in error_line(done)


def test_a_configuration_is_enough(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", Tiny(context=100_000))
    (folder / "model.safetensors").unlink()
    gpu = ("--device", "gpu", "--memory", "750MB", "--bandwidth", 900, "--drafter", "eagle")
    done = forerun("plan", "-m", folder, *gpu, "--dtype", "q4", "--json")
    found = json.loads(done.stdout)
    assert 1000 < found["largest_context"] < 100_000
    assert [row["context"] for row in found["contexts"] if row["fits"]][-1] == found["largest_context"]
    assert not found["contexts"][-1]["fits"]


@pytest.mark.parametrize("dtype", [[], {}, 5, None, "int3"])
def test_an_unknown_dtype_in_a_configuration_is_taken_for_bfloat16(tmp_path: Path, dtype: object) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "torch_dtype": dtype}))
    assert set(read_outline(str(config)).kinds.values()) == {"BF16"}
    assert forerun("plan", "-m", config, "--bandwidth", 10).returncode == 0


@pytest.mark.parametrize("drafter", ["skip:2", "skip:7", "suffix,skip:99999999999999999999"])
def test_more_layers_than_there_are_to_skip_to(tiny: Path, drafter: str) -> None:
    done = forerun("plan", "-m", tiny, "--bandwidth", 10, "--drafter", drafter)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "give a number of layers from 1 to 1" in error_line(done)


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_1B = {
    **LLAMA_70B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("drafter", ["eagle3", "draft:{}/small", "suffix,eagle"])
def test_seventy_billion_weights_on_48_gigabytes(drafter: str, tmp_path: Path) -> None:
    """From nothing but configurations, as of hub ids."""
    for name, config in (("large", LLAMA_70B), ("small", LLAMA_1B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    found = json.loads(
        forerun(
            "plan", "-m", tmp_path / "large", "--dtype", "q4", "--drafter", drafter.format(tmp_path),
            "--device", "gpu", "--memory", "48GiB", "--bandwidth", 960, "--acceptance", 0.75, "--json",
        ).stdout
    )  # fmt: skip
    row = next(row for row in found["contexts"] if row["context"] == 4096)
    parts = {part["name"]: part for part in row["parts"]}
    assert 70.5e9 * 4.5 / 8 < parts["model"]["weights"] < 70.6e9 * 5.2 / 8
    assert parts["model"]["kv"] == pytest.approx(80 * 8 * 2 * 128 * 2 * 4096, rel=0.02)
    drafting = next(part for name, part in parts.items() if name not in ("model", "suffix", "program"))
    assert 0.7e9 < drafting["weights"] < 1.6e9
    assert drafting["kv"]
    assert 4096 < found["largest_context"] < 16384
    # at best the weights are read once a token, or a step of several
    assert row["plain_tokens_per_second"] == pytest.approx(960e9 / 46.3e9, rel=0.05)
    assert 2 < row["speculative_tokens_per_second"] / row["plain_tokens_per_second"] < 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--drafter", "nobody"), "there is no drafter 'nobody'"),
        (("--drafter", "eagle,skip:x"), "give a number of layers"),
        (("--memory", "much"), "no amount of memory"),
        (("--memory", "0"), "memory is 0; it must be at least 1"),
        (("--device", "gpu"), "--memory and --bandwidth"),
        (("--dtype", "q3"), "no dtype 'q3'"),
        (("--context", "5000"), "at most 1024"),
        (("--drafter", "draft:nowhere.gguf"), "there is no draft model"),
        (("--bandwidth", "0"), "--bandwidth"),
    ],
)
def test_bad_input(tiny: Path, arguments: tuple[str, ...], says: str) -> None:
    done = forerun("plan", "-m", tiny, *arguments)
    assert done.returncode == 2
    assert says in error_line(done)


def test_a_system_that_does_not_tell_its_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 0)
    assert "give --memory" in error_line(forerun("plan", "-m", tiny, "--bandwidth", 10))


def test_advice_names_only_what_is_counted(tiny: Path) -> None:
    small = ("plan", "-m", tiny, "--memory", "1MB", "--bandwidth", 10, "--context", 100, "--drafter")
    for drafter, extra in [("suffix", ""), (f"draft:{tiny}", "no draft model"), ("eagle", "no head")]:
        said = error_line(forerun(*small, drafter))
        assert "none does: use a smaller --dtype or --kv" in said
        assert [words for words in ("no draft model", "no head") if words in said] == [extra] * bool(extra)


@pytest.fixture
def drafting(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A draft model that was tuned to be what auto stands for."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    name = f"draft:{tiny}"
    keep_choice(tiny, Choice(name, 3, 1, "auto", 0.5))
    return name


def planned(tiny: Path, *arguments: object) -> dict[str, Any]:
    done = forerun("plan", "-m", tiny, "--bandwidth", 10, "--json", *arguments)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_auto_comes_to_is_what_the_engine_uses(tiny: Path, drafting: str) -> None:
    """Where there is no room for the draft model beside a context, suffix drafts alone."""
    outline = read_outline(str(tiny))
    alone, whole = (make_planner(outline, [name]) for name in ("suffix", drafting))
    limit = int(whole.at(600).total * 1.03) + 1  # some contexts have room for both
    assert whole.largest_context(limit) < alone.largest_context(limit)
    found = planned(tiny, "--memory", limit)
    assert found["drafters"] == ["suffix"]
    assert (found["acceptance"], found["acceptance_from"]) == (0.7, "assumed")
    assert found["largest_context"] == alone.largest_context(limit)
    assert {row["context"]: row["drafters"] for row in found["contexts"]} == {
        512: [drafting],
        1024: ["suffix"],
    }
    for context in (512, 1024):
        found = planned(tiny, "--memory", limit, "--context", context)
        engine = load(str(tiny), memory=limit, context=context)
        assert found["drafters"] == [engine.auto.drafter] == found["contexts"][0]["drafters"]
    assert engine.auto.draft_tokens is None  # what was tuned for the draft model says nothing of suffix
    lines = forerun("plan", "-m", tiny, "--memory", limit, "--bandwidth", 10).stdout.decode().splitlines()
    said = "from a context of 1,024 on there is no room for {}: suffix drafts alone, as for generate"
    assert lines[4] == said.format(drafting)
    assert planned(tiny, "--memory", limit, "--drafter", drafting)["drafters"] == [drafting]


def test_a_tuned_drafter_that_is_gone_within_memory(tiny: Path, drafting: str) -> None:
    keep_choice(tiny, Choice("draft:/gone.gguf", 3))
    assert planned(tiny, "--memory", "1GB")["drafters"] == ["suffix"]
    assert load(str(tiny), memory="1GB").auto.drafter == "suffix"


def test_plain_decoding_that_was_tuned_stays(tiny: Path, drafting: str) -> None:
    """It takes less than suffix, so there is nothing to fall back to."""
    keep_choice(tiny, Choice("none"))
    limit = int(make_planner(read_outline(str(tiny)), ["none"]).at(700).total * 1.03) + 1
    assert planned(tiny, "--memory", limit)["drafters"] == []
    assert load(str(tiny), memory=limit, context="auto").auto.drafter == "none"


def test_generate_keeps_within_memory(tiny: Path) -> None:
    done = forerun("generate", "-m", tiny, "hello", "--memory", "20MB")
    assert done.returncode == 2
    assert "a context of 1024 needs" in error_line(done)
    done = forerun("generate", "-m", tiny, "hello", "--memory", "1GB", "--context", "auto", "--max-tokens", 3)
    assert done.returncode == 0
    done = forerun("generate", "-m", tiny, "hello", "--context", "long")
    assert done.returncode == 2
    assert "neither a number of tokens nor auto" in error_line(done)
