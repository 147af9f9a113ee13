"""Memory that is predicted, against what the core takes and what the system says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from forerun import _core
from forerun.answers import Stream
from forerun.backends.cpu import load_backend
from forerun.errors import InputError
from forerun.models.checkpoint import open_checkpoint
from forerun.models.heads import open_head
from forerun.models.hub import resolve_model
from forerun.models.memory import bytes_per_forward, kv_bytes_per_token, packed_bytes, resident_weights
from forerun.models.outline import Outline, outline_of, read_outline
from forerun.planning import (
    SMALLEST_CONTEXT,
    Allowance,
    Planner,
    fits,
    keep_within,
    make_planner,
    parse_size,
)
from forerun.roster import best_drafter
from forerun.weights.tensor import KINDS
from support.heads import Sizes, TinyHead
from support.random_models import random_checkpoint, random_config
from support.tiny import Tiny, write_tiny_gguf, write_tiny_hf

LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
MEASURE = """
import json, sys
from forerun import SamplingParams, load
options = json.loads(sys.argv[1])
tokens = options.pop("tokens")
engine = load(**options)
engine.generate("word " * tokens, SamplingParams(max_tokens=8, ignore_end=True))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(engine.context, int(peak.split()[1]) * 1024)
"""


def run_and_measure(**options: object) -> tuple[int, int]:
    """The context that an engine came to have, and the most memory that was resident meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    context, peak = done.stdout.split()
    return int(context), int(peak)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("dtype", ["auto", "f32", "bf16", "q8", "q4"])
def test_weights_are_what_the_core_packs(kind: str, dtype: str) -> None:
    config = random_config(tied=dtype != "q8", vocab=307, layers=1)
    checkpoint = random_checkpoint(config, kind)
    outline = outline_of(checkpoint)
    packed = load_backend(checkpoint, dtype=dtype, threads=1)
    assert bytes_per_forward(config, outline.kinds, dtype) == packed.bytes_per_forward


@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "q8"])
@pytest.mark.parametrize("head_dim", [8, 32, 72])
def test_keys_and_values_are_what_the_cache_takes(kv: str, head_dim: int) -> None:
    config = random_config(head_dim=head_dim, kv_heads=4)
    cache = _core.Cache(config.layers, config.kv_heads, config.head_dim, kv, 64)
    assert kv_bytes_per_token(config, kv) == cache.bytes_per_token


def test_weights_end_on_whole_pages_of_their_mappings() -> None:
    assert resident_weights([]) == 0
    assert resident_weights([1]) == 2 << 20
    assert resident_weights([40 << 20, 30 << 20]) == 70 << 20
    assert resident_weights([(40 << 20) + 1, 30 << 20]) == 72 << 20
    assert resident_weights([100 << 20, 1 << 20]) == 102 << 20


def tiny_outline(**sizes: int) -> Outline:
    config = random_config(**sizes)
    return outline_of(random_checkpoint(config))


def test_the_largest_context_is_the_last_that_fits() -> None:
    planner = Planner(tiny_outline(layers=4), ("suffix",))
    limit = int(planner.at(777).total * 1.03) + 1
    largest = planner.largest_context(limit)
    assert largest >= 777
    assert fits(planner.at(largest), limit)
    assert not fits(planner.at(largest + 1), limit)
    assert planner.largest_context(1 << 40) == planner.target.config.context
    assert planner.largest_context(1000) == 0


def test_a_limit_is_kept_or_refused_with_the_numbers() -> None:
    planner = Planner(tiny_outline(layers=4))
    limit = int(planner.at(500).total * 1.03) + 1
    assert keep_within(planner, limit, 400) == 400
    assert keep_within(planner, limit, None) == planner.largest_context(limit)
    with pytest.raises(InputError) as caught:
        keep_within(planner, limit, 2000)
    largest = planner.largest_context(limit)
    needs = r"a context of 2000 needs (\d+MB) \(model \d+ MB, program \d+ MB, 3 % to spare\), more than"
    advice = rf" the \d+ MB allowed; allow \1, or take a context of {largest} or auto"
    assert re.fullmatch(needs + advice, str(caught.value))
    with pytest.raises(InputError, match="no context fits") as caught:
        keep_within(planner, 1_000_000, None)
    least = re.search(r"; allow (\d+MB),", str(caught.value))
    assert least
    assert keep_within(planner, parse_size(least[1]), None) >= SMALLEST_CONTEXT
    with pytest.raises(InputError):
        keep_within(planner, parse_size(least[1]) - 10**6, None)
    with pytest.raises(InputError, match=rf"no context fits; allow {least[1]} with the context auto"):
        keep_within(planner, 1_000_000, 1000)


def test_drafters_have_their_share(tmp_path: Path) -> None:
    draft = write_tiny_hf(tmp_path / "draft")
    planner = make_planner(tiny_outline(layers=4), [f"draft:{draft}", "skip:2", "suffix"])
    model, own, skip, suffix, program = planner.at(1000).shares
    assert own.weights > 0
    assert (skip.weights, skip.kv) == (0, model.kv // 2)
    assert suffix.kv == 110_000
    assert program.total > 30e6
    assert make_planner(tiny_outline(), ["none"]).drafters == ()


HEADS = {
    "eagle": lambda: Sizes().eagle(),
    "eagle with an embedding": lambda: Sizes().eagle(embedding=True),
    "eagle3": lambda: Sizes().eagle3(),
    "medusa": lambda: Sizes().medusa(),
    "hydra": lambda: Sizes().hydra(blocks=2),
    "hydra, the target's rows": lambda: Sizes().hydra(small=True),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_what_the_core_packs(kind: str, tmp_path: Path) -> None:
    config = random_config(hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=24)
    checkpoint = random_checkpoint(config)
    folder = HEADS[kind]().save(tmp_path / "head")
    name = f"head:{folder}"
    planner = make_planner(outline_of(checkpoint), [name])
    loaded = load_backend(checkpoint, threads=1).load_head(open_head(folder))
    share = planner.at(100).shares[1]
    assert share.weights == loaded.bytes
    rows = packed_bytes("BF16", "q8", 24 - 15, 64) if "rows" in kind else 0  # for rare tokens
    assert share.kv == (rows if kind.startswith(("medusa", "hydra")) else 164 * 2 * (16 + 16) * 2)
    assert planner.heads[name].taps == len(loaded.taps)

    limit = int((planner.at(500).total + 3_000) * 1.03)
    allowance = Allowance(Planner(planner.target), limit, 500)
    allowance.admit([name])
    allowance.admit([name])  # counts once
    allowance.take_text([name], 450)
    with pytest.raises(InputError, match="drafter draft:"):
        allowance.admit([f"draft:{write_tiny_hf(tmp_path / 'draft')}"])


def test_rows_that_a_head_borrows_of_its_target_are_counted(tmp_path: Path) -> None:
    """A head without an output layer, which guesses a part of the vocabulary."""
    config = random_config(hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=24)
    checkpoint = random_checkpoint(config)
    head = Sizes().eagle3()
    arrays = {name: values for name, values in head.arrays.items() if "lm_head" not in name}
    folder = TinyHead(head.config, arrays).save(tmp_path / "head")
    planner = make_planner(outline_of(checkpoint), [f"head:{folder}"])
    loaded = load_backend(checkpoint, threads=1).load_head(open_head(folder))
    share = planner.at(100).shares[1]
    assert share.weights == loaded.bytes
    rows = packed_bytes("F32", "q8", 24 - 15, 64)  # for tokens of a text that it lacks
    assert share.kv == 164 * 2 * (16 + 16) * 2 + rows


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "hydra"])
def test_a_head_of_the_usual_shape_is_planned_as_one_that_is_there(kind: str, tmp_path: Path) -> None:
    config = random_config(hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=24)
    sizes = Sizes(inner=config.intermediate_size, outputs=24)
    folder = getattr(sizes, kind)().save(tmp_path / "head")
    outline = outline_of(random_checkpoint(config))
    usual = make_planner(outline, [kind]).heads[kind]
    there = make_planner(outline, [f"head:{folder}"]).heads[f"head:{folder}"]
    assert (usual.taps, usual.kv_per_token) == (there.taps, there.kv_per_token)
    if kind not in ("medusa", "hydra"):  # as many heads as one likes
        assert usual.weights == pytest.approx(there.weights, rel=0.02)
        assert usual.reads == pytest.approx(there.reads, rel=0.02)


def test_an_allowance_is_used_up_and_given_back() -> None:
    planner = Planner(tiny_outline(layers=4))
    allowance = Allowance(planner, int(planner.at(1000).total * 1.03) + 1, 1000)
    first, _ = allowance.take_text(["none"], 500)
    second, _ = allowance.take_text(["none"], 400)
    with pytest.raises(InputError, match=r"a text of 400 tokens needs .* more"):
        allowance.take_text(["none"], 400)
    allowance.give(first)
    allowance.give(second)
    allowance.take_text(["none"], 1000)


def test_one_is_no_plural() -> None:
    planner = Planner(tiny_outline())
    allowance = Allowance(planner, int(planner.at(100).total * 1.03) + 1, 100)
    allowance.take_text(["none"], 100)
    with pytest.raises(InputError, match="a text of 1 token needs"):
        allowance.take_text(["none"], 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * 10**9), ("1.5GiB", 3 << 29), ("800 MB", 8 * 10**8), ("1000", 1000), ("2g", 2 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1PB", "1e9", "nan", "1" * 50])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="no amount of memory"):
        parse_size(text)


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "whole")
    whole = read_outline(str(folder))
    (folder / "model.safetensors").unlink()
    for name in (folder, folder / "config.json"):
        bare = read_outline(str(name))
        assert bare.kinds == whole.kinds
        assert Planner(bare).at(100) == Planner(whole).at(100)


def test_an_engine_refuses_texts_beyond_its_memory(tmp_path: Path) -> None:
    from forerun import SamplingParams, load

    path = write_tiny_gguf(tmp_path / "m.gguf", Tiny(layers=8, context=4096))
    planner = Planner(read_outline(str(path)))
    engine = load(str(path), drafter="none", memory=int(planner.at(2000).total * 1.03) + 1, context="auto")
    assert 2000 <= engine.context < 2050
    params = SamplingParams(max_tokens=1900, ignore_end=True)
    with engine.stream("hello", params) as first:
        next(first)
        with pytest.raises(InputError, match=r"a text of .* needs .* more"):
            engine.stream("hello", params)
    del first
    engine.stream("hello", params).close()
    with pytest.raises(InputError, match="a text to remember needs"):
        engine.remember(["word " * 200_000])


def test_a_cache_that_is_taken_over_counts_once(tmp_path: Path) -> None:
    from forerun import SamplingParams, load

    path = write_tiny_gguf(tmp_path / "m.gguf", Tiny(layers=8, context=4096))
    planner = Planner(read_outline(str(path)))
    engine = load(str(path), drafter="none", memory=int(planner.at(2000).total * 1.03) + 1, context="auto")
    params = SamplingParams(max_tokens=1900, ignore_end=True)
    prompt = engine.encode("hello")

    def begun(after: Stream | None) -> Stream:
        stream = engine.stream_tokens(prompt, params, after=after)
        next(stream)
        stream.close()
        return stream

    first = begun(None)
    second = begun(first)
    third = begun(second)
    del first, third
    with pytest.raises(InputError, match=r"a text of .* needs .* more"):
        engine.stream_tokens(prompt, params)  # the second still holds the cache
    del second
    begun(None)


def test_memory_of_a_text_that_failed_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun import SamplingParams, load

    path = write_tiny_gguf(tmp_path / "m.gguf", Tiny(layers=8, context=4096))
    planner = Planner(read_outline(str(path)))
    engine = load(str(path), drafter="none", memory=int(planner.at(2000).total * 1.03) + 1, context="auto")
    params = SamplingParams(max_tokens=1900)

    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_target", full)
        with pytest.raises(MemoryError):
            engine.stream("hello", params)
    engine.stream("hello", params).close()


@LINUX
@pytest.mark.model
@pytest.mark.parametrize("drafter", ["none", "draft:{path}", "auto"])
def test_predicted_is_resident_on_the_default_model(drafter: str) -> None:
    path = str(resolve_model("smollm2-135m"))
    drafter = drafter.format(path=path)
    checkpoint = open_checkpoint(Path(path))
    named = best_drafter(checkpoint.config) if drafter == "auto" else drafter
    planner = make_planner(outline_of(checkpoint), named.split(","))
    _, peak = run_and_measure(model=path, drafter=drafter, tokens=1500)
    assert planner.at(1509).total == pytest.approx(peak, rel=0.05)


@LINUX
@pytest.mark.model
def test_a_limit_is_never_exceeded() -> None:
    context, peak = run_and_measure(memory="230MB", context="auto", tokens=1500)
    assert 1520 < context < 8192
    assert peak <= 230e6


def test_of_a_hub_id_only_the_configuration_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_hf(tmp_path / "hub")
    (folder / "model.safetensors").unlink()
    asked: list[object] = []

    def download(repo: str, *, local_files_only: bool = False, allow_patterns: object = None) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not in the cache")
        asked.append((repo, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    outline = read_outline("someone/model")
    assert asked == [("someone/model", ["config.json", "generation_config.json"])]
    assert outline.config.layers == 2
    with pytest.raises(InputError, match=r"fetch it first: forerun pull someone/model:file\.gguf"):
        read_outline("someone/model:file.gguf")
    with pytest.raises(InputError, match="there is no model"):
        read_outline("nothing")
