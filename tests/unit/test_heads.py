"""Heads on disk: what is read, what is refused, and that what is written is read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.tiny_cpu import tiny_cpu_backend
from forerun import _core
from forerun.cli.commands import forerun
from forerun.errors import InputError
from forerun.models.heads import is_head, open_head
from forerun.models.heads.save import EagleSettings, MedusaSettings, save_eagle3, save_medusa
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.heads import EAGLES, MEDUSAS, Sizes, TinyHead

TARGET = tiny_cpu_backend()
SIZES = Sizes()
SETTINGS = EagleSettings(
    target="tiny",
    hidden_size=64,
    target_hidden_size=64,
    intermediate_size=80,
    heads=4,
    kv_heads=2,
    head_dim=16,
    layers=1,
    vocab_size=24,
    taps=(0, 1, 2),
)


@pytest.mark.parametrize("name", [*EAGLES, *MEDUSAS])
def test_what_a_folder_holds(name: str, tmp_path: Path) -> None:
    head = open_head(EAGLES.get(name, MEDUSAS.get(name))().save(tmp_path))  # type: ignore[misc]
    first = name.split(",")[0]
    assert head.family == {"vllm medusa": "medusa", "speculators": "eagle3"}.get(first, first)
    assert is_head(tmp_path)
    head.check_fits(TARGET.config)
    if head.family == "medusa":
        assert head.depth == 3  # though the configuration says 2
    else:
        assert head.layer is not None
        assert head.layer.layers == 1 + ("two layers" in name)  # though it says 40
    if "eagle3" in name:
        assert head.taps_for(TARGET.config) == ((0, 1, 2) if "all" in name else (2, 1, 0))


def test_either_way_of_counting_layers(tmp_path: Path) -> None:
    """The usual three states may be named by the layers that give them, as SpecForge does."""
    config = tiny_cpu_backend(layers=8).config
    for taps, read in (((2, 4, 5), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((1, 3, 5), (1, 3, 5))):
        assert open_head(Sizes().eagle3(taps=taps).save(tmp_path)).taps_for(config) == read


def test_offsets_are_offsets(tmp_path: Path) -> None:
    tiny = SIZES.eagle3()
    head = open_head(tiny.save(tmp_path))
    assert head.tokens is not None
    assert head.tokens.tolist() == np.flatnonzero(tiny.arrays["t2d"]).tolist()


def changed(head: TinyHead, **arrays: np.ndarray | None) -> TinyHead:
    made = {**head.arrays, **{name.replace("__", "."): values for name, values in arrays.items()}}
    return dataclasses.replace(head, arrays={k: v for k, v in made.items() if v is not None})


def many(values: int) -> np.ndarray:
    return np.full(15, values, dtype=np.int64)


BROKEN = {
    "lacks the tensor 'norm.weight'": lambda: changed(Sizes().eagle3(), norm__weight=None),
    "'extra'": lambda: changed(Sizes().eagle3(), extra=np.zeros(3, dtype=np.float32)),
    "has the shape": lambda: changed(Sizes().eagle3(), norm__weight=np.zeros(3, dtype=np.float32)),
    "leads outside": lambda: changed(Sizes().eagle3(), d2t=many(10)),
    "to one token twice": lambda: changed(Sizes().eagle3(), d2t=-np.arange(15)),
    "has no 'd2t'": lambda: changed(Sizes().eagle3(), d2t=None),
    "entries for 15 outputs": lambda: changed(Sizes().eagle3(), d2t=np.zeros(14, dtype=np.int64)),
    "no vector of whole numbers": lambda: changed(Sizes().eagle3(), d2t=np.zeros(15, dtype=np.float32)),
    "no list of layers": lambda: TinyHead(
        {**Sizes().eagle3().config, "eagle_aux_hidden_state_layer_ids": [-1]}, Sizes().eagle3().arrays
    ),
    "heads of 8": lambda: TinyHead({**Sizes().eagle3().config, "head_dim": 8}, Sizes().eagle3().arrays),
    "no 'token_map'": lambda: changed(Sizes().vllm_medusa(), token_map=None),
    "lacks the tensor 'heads.1.out.weight'": lambda: changed(Sizes().vllm_medusa(), lm_heads__1__weight=None),
    "kind 'peagle'; those that are known here are eagle and eagle3": lambda: TinyHead(
        {**Sizes().eagle3(speculators=True).config, "speculators_model_type": "peagle"},
        Sizes().eagle3(speculators=True).arrays,
    ),
    "says add_para_norm, and there is no such norm": lambda: TinyHead(
        {**Sizes().eagle().config, "add_para_norm": True}, Sizes().eagle().arrays
    ),
    "says norm_before_fc, and there is no such norm": lambda: TinyHead(
        {**Sizes().eagle3().config, "norm_before_fc": True}, Sizes().eagle3().arrays
    ),
    "no drafting head": lambda: TinyHead({}, {"fc.weight": np.zeros((2, 4), dtype=np.float32)}),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_broken_heads_are_refused(reason: str, tmp_path: Path) -> None:
    BROKEN[reason]().save(tmp_path)
    with pytest.raises(InputError, match=reason):
        open_head(tmp_path)


OTHERS = {
    "whose hidden size is 64": lambda: Sizes(target=48).eagle3(),
    "reads layer 5 of its target, which has 2": lambda: Sizes().eagle3(taps=(1, 2, 5)),
    "knows 20 tokens, its target 24": lambda: Sizes(vocab=20).eagle3(),
    "knows 25 tokens, its target 24": lambda: Sizes(vocab=25).eagle3(embedding=True),
    "guesses 20 tokens, and its target knows 24": lambda: Sizes(vocab=20).medusa(),
    "guesses 28 tokens, and its target knows 24": lambda: Sizes(vocab=28).medusa(),
    "guesses token": lambda: Sizes(vocab=99, outputs=60).eagle3(),
    "needs an embedding": lambda: Sizes(hidden=48).eagle3(),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_heads_of_other_models_are_refused(reason: str, tmp_path: Path) -> None:
    head = open_head(OTHERS[reason]().save(tmp_path))
    with pytest.raises(InputError, match=reason):
        TARGET.load_head(head)
    with pytest.raises(InputError, match="made for tiny"):
        head.check_fits(TARGET.config)


@pytest.mark.parametrize("vocab", [298, 303])
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_vocabularies_may_be_padded_differently(kind: str, vocab: int, tmp_path: Path) -> None:
    """A head that has rows for tokens that its target lacks never guesses these; one that lacks some of its
    target's reads nothing for them."""
    target = tiny_cpu_backend(vocab_size=300)
    sizes = Sizes(vocab=vocab)
    made = sizes.medusa() if kind == "medusa" else sizes.eagle3(embedding=True, reduced=False)
    if vocab > 300:  # what has no meaning would be guessed first
        for name, rows in made.arrays.items():
            if name == "lm_head.weight" or name.endswith(".1.weight"):
                rows[300:] = 50.0
    loaded = target.load_head(open_head(made.save(tmp_path)))
    settings = core_settings(Pipeline(SamplingParams(), 300, (299,), 1), 0)
    core: _core.EagleDrafter | _core.MedusaDrafter
    if isinstance(loaded.core, _core.MedusaHeads):
        core = _core.MedusaDrafter(loaded.core, settings)
    else:
        core = _core.EagleDrafter(loaded.core, settings, loaded.kv, 100)
    text = np.array([1, 299, 2, 298, 3], dtype=np.int32)
    states = target.forward(Rows.chain(text, target.new_cache(16)), text[:0], loaded.taps).features.copy()
    core.observe(text[:1], None)
    core.observe(text[1:], states[:-1].reshape(4, -1))
    tree = core.propose(60, 2, 0.0)
    assert len(tree.ids) > 10
    assert max(tree.ids[1:]) < min(vocab, 300)
    assert tree.odds is not None
    assert np.isfinite(tree.odds).all()


def test_a_target_with_fewer_hidden_states_than_are_read(tmp_path: Path) -> None:
    head = open_head(Sizes().eagle3().save(tmp_path))
    with pytest.raises(InputError, match="reads 3 hidden states of its target, which has 2"):
        head.check_fits(tiny_cpu_backend(layers=1).config)


@pytest.mark.parametrize("layout", ["original", "speculators"])
@pytest.mark.parametrize("reduced", [True, False])
def test_saved_eagle3_is_read_again(layout: str, reduced: bool, tmp_path: Path) -> None:
    tiny = Sizes().eagle3(reduced=reduced, embedding=not reduced)
    tensors = {name: values for name, values in tiny.arrays.items() if name not in ("d2t", "t2d")}
    tokens = np.flatnonzero(tiny.arrays["t2d"]).astype(np.int32) if reduced else None
    save_eagle3(
        tmp_path / "new", SETTINGS, tensors, tokens, "original" if layout == "original" else "speculators"
    )
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]  # where vLLM looks
    ours, theirs = open_head(tmp_path / "new"), open_head(tiny.save(tmp_path / "old"))
    assert ours.layout == {"original": "eagle3", "speculators": "speculators"}[layout]
    assert ours.taps == (0, 1, 2)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert (ours.tokens is None) == (not reduced)
    if ours.tokens is not None and theirs.tokens is not None:
        assert ours.tokens.tolist() == theirs.tokens.tolist()
    for name, tensor in ours.tensors.items():
        wide = np.left_shift(tensor.data.view(np.uint16).astype(np.uint32), np.uint32(16)).view(np.float32)
        exact = theirs.tensors[name].data.view(np.float32)
        assert np.abs(wide - exact).max() <= np.abs(exact).max() / 256  # half a step of bfloat16


@pytest.mark.parametrize("layout", ["original", "vllm", "vllm, shared"])
def test_saved_medusa_is_read_again(layout: str, tmp_path: Path) -> None:
    tiny = Sizes().medusa()
    settings = MedusaSettings(target="tiny", hidden_size=64, vocab_size=24, heads=3)
    tokens = None
    tensors = dict(tiny.arrays)
    if layout != "original":
        tokens = np.array([3, 1, 7, 20], dtype=np.int32)
        for head in range(3):
            tensors[f"{head}.1.weight"] = tensors[f"{head}.1.weight"][tokens]
    if "shared" in layout:
        del tensors["1.1.weight"], tensors["2.1.weight"]
        with pytest.raises(ValueError, match="no shared output layer"):
            save_medusa(tmp_path, settings, tensors)
    save_medusa(tmp_path, settings, tensors, tokens, "original" if layout == "original" else "vllm")
    head = open_head(tmp_path)
    assert head.layout == ("medusa" if layout == "original" else "vllm")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("original_lm_head", False) == ("shared" in layout)
    assert head.depth == 3
    assert head.outputs == (24 if tokens is None else 4)
    assert (head.tokens is None) == (tokens is None)
    TARGET.load_head(head)


def test_inspect_shows_a_head(tmp_path: Path) -> None:
    EAGLES["eagle3"]().save(tmp_path)
    shown = CliRunner().invoke(forerun, ["inspect", str(tmp_path)])
    assert shown.exit_code == 0
    assert "EAGLE-3" in shown.output
    assert "15 of 24" in shown.output
    facts = json.loads(CliRunner().invoke(forerun, ["inspect", str(tmp_path), "--json"]).output)
    assert facts["family"] == "eagle3"
    assert facts["guessed_tokens"] == 15
