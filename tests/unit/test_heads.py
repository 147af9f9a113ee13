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
from forerun.models.heads.save import (
    EagleSettings,
    HydraSettings,
    MedusaSettings,
    save_eagle3,
    save_hydra,
    save_medusa,
)
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.heads import EAGLES, HYDRAS, MEDUSAS, Sizes, TinyHead

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


@pytest.mark.parametrize("name", [*EAGLES, *MEDUSAS, *HYDRAS])
def test_what_a_folder_holds(name: str, tmp_path: Path) -> None:
    head = open_head({**EAGLES, **MEDUSAS, **HYDRAS}[name]().save(tmp_path))
    first = name.split(",")[0]
    assert head.family == {"vllm medusa": "medusa", "speculators": "eagle3"}.get(first, first)
    assert is_head(tmp_path)
    head.check_fits(TARGET.config)
    if head.family in ("medusa", "hydra"):
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


def hydra_saying(**config: object) -> TinyHead:
    head = Sizes().hydra()
    return dataclasses.replace(head, config={**head.config, **config})


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
    "lacks the tensor 'heads.1.residual.weight'": lambda: changed(
        Sizes().hydra(), hydra_mlp__1__0__res_connection__weight=None
    ),
    "lacks the tensor 'heads.2.out.weight'": lambda: changed(Sizes().hydra(), hydra_lm_head__2__weight=None),
    "lacks the tensor 'heads.3.": lambda: changed(
        Sizes().hydra(), hydra_mlp__99__0__linear__weight=np.zeros((64, 64), dtype=np.float32)
    ),
    "'hydra_mlp.100.0.linear.weight'": lambda: changed(
        Sizes().hydra(), hydra_mlp__100__0__linear__weight=np.zeros((64, 64), dtype=np.float32)
    ),
    "'heads.2.linear.weight' .* has the shape .64, 192., not .64, 256.": lambda: changed(
        Sizes().hydra(), hydra_mlp__2__0__linear__weight=np.zeros((64, 192), dtype=np.float32)
    ),
    "'heads.0.blocks.0.residual": lambda: changed(
        Sizes().hydra(blocks=2), hydra_mlp__0__1__res_connection__bias=np.zeros(64, dtype=np.float32)
    ),
    "'heads.0.out.weight' twice": lambda: changed(
        Sizes().hydra(), hydra_lm_head__0__1__weight=np.zeros((24, 64), dtype=np.float32)
    ),
    "'input_embed_fn.weight' .* has the shape": lambda: changed(
        Sizes().hydra(), input_embed_fn__weight=np.zeros((24, 63), dtype=np.float32)
    ),
    "lacks the first block": lambda: changed(Sizes().hydra(heads=1), hydra_mlp__0__0__linear__weight=None),
    "guesses 15 of 24 tokens and has no 'd2t'": lambda: TinyHead(
        {**Sizes(vocab=15).hydra().config, "vocab_size": 24}, Sizes(vocab=15).hydra().arrays
    ),
    "Hydra.. heads .prefix-mlp.": lambda: hydra_saying(hydra_head_arch="prefix-mlp"),
    "of the kind 'eagle-attn'": lambda: hydra_saying(hydra_head_arch="eagle-attn"),
    "hydra_head_arch is 3, not text": lambda: hydra_saying(hydra_head_arch=3),
    "state 2 layers before the last": lambda: hydra_saying(hidden_state_offset=2),
    "hidden_state_offset is 'x'": lambda: hydra_saying(hidden_state_offset="x"),
    "not grounded": lambda: TinyHead(
        Sizes().hydra().config,
        {name: values for name, values in Sizes().hydra().arrays.items() if "res_conn" not in name},
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
    "guesses 20 tokens, and its target knows 24$|made for tiny": lambda: Sizes(vocab=20).hydra(),
    "reads 48 values of 1 hidden state of its target, whose": lambda: Sizes(target=48).hydra(),
    "knows 20 tokens, its target": lambda: Sizes(vocab=20).hydra(small=True),
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
@pytest.mark.parametrize("kind", ["medusa", "eagle3", "hydra"])
def test_vocabularies_may_be_padded_differently(kind: str, vocab: int, tmp_path: Path) -> None:
    """A head that has rows for tokens that its target lacks never guesses these; one that lacks some of its
    target's reads nothing for them."""
    target = tiny_cpu_backend(vocab_size=300)
    sizes = Sizes(vocab=vocab)
    made = sizes.eagle3(embedding=True, reduced=False) if kind == "eagle3" else getattr(sizes, kind)()
    if vocab > 300:  # what has no meaning would be guessed first
        for name, rows in made.arrays.items():
            if "lm_head" in name or name.endswith(".1.weight"):
                rows[300:] = 50.0
    loaded = target.load_head(open_head(made.save(tmp_path)))
    settings = core_settings(Pipeline(SamplingParams(), 300, (299,), 1), 0)
    core = loaded.drafter(settings, 100)
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


@pytest.mark.parametrize("layout", ["original", "small", "small, all tokens"])
def test_saved_hydra_is_read_again(layout: str, tmp_path: Path) -> None:
    tiny = Sizes().hydra(blocks=2, bias=False, small=layout != "original")
    tokens = (tiny.arrays["d2t"] + np.arange(15)).astype(np.int32) if layout == "small" else None
    tensors = {name: values for name, values in tiny.arrays.items() if name.startswith("hydra_")}
    settings = HydraSettings(target="tiny", hidden_size=64, vocab_size=24, heads=3, blocks=2)
    save_hydra(tmp_path, settings, tensors, tokens, "original" if layout == "original" else "small")
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hydra_num_heads"], config["hydra_num_layers"]) == (3, 2)
    assert config.get("model_type") == (None if layout == "original" else "hydra")
    head = open_head(tmp_path)
    head.check_fits(TARGET.config)
    assert (head.family, head.depth) == ("hydra", 3)
    assert head.outputs == {"original": 24, "small": 15}.get(layout)
    TARGET.load_head(head)
    assert head.borrows_rows == (layout == "small")
    assert (head.tokens is None) == (tokens is None)
    if tokens is not None and head.tokens is not None:
        assert head.tokens.tolist() == tokens.tolist()
    assert ("heads.2.out.bias" in head.tensors) == (layout == "original")  # zeros: the authors' have one
    names = {"linear": "0.linear", "residual": "0.res_connection", "blocks.0": "1.linear"}
    for ours, theirs in names.items():
        values = head.tensors[f"heads.2.{ours}.weight"].data.view(np.uint16).astype(np.uint32)
        exact = tiny.arrays[f"hydra_mlp.2.{theirs}.weight"]
        wide = np.left_shift(values, np.uint32(16)).view(np.float32).reshape(exact.shape)
        assert np.abs(wide - exact).max() <= np.abs(exact).max() / 256


def test_a_hydra_heads_matrices_may_be_of_two_kinds(tmp_path: Path) -> None:
    """What is packed as one layer is stored as two; so may the biases be, of which one may be missing."""
    arrays = dict(Sizes().hydra().arrays)
    name = "hydra_mlp.0.0.linear.weight"
    arrays[name] = arrays[name].astype(np.float16).astype(np.float32)
    arrays["hydra_mlp.0.0.linear.bias"][:] = 0.0
    mixed = {**arrays, name: arrays[name].astype(np.float16)}
    del mixed["hydra_mlp.0.0.linear.bias"]
    state, logits = np.random.default_rng(1).normal(size=64).astype(np.float32), []
    for at, made in (("one", arrays), ("two", mixed)):
        core = TARGET.load_head(open_head(TinyHead({}, made).save(tmp_path / at))).core
        assert isinstance(core, _core.HydraHeads)
        logits.append(core.logits(state, [7]).tolist())
    assert logits[0] == logits[1]


def test_hydra_layouts_refuse_what_they_have_no_place_for(tmp_path: Path) -> None:
    settings = HydraSettings(target="tiny", hidden_size=64, vocab_size=24, heads=3)
    whole, small = (Sizes().hydra(small=small).arrays for small in (False, True))
    with pytest.raises(ValueError, match="an output layer over all tokens for each head"):
        save_hydra(tmp_path, settings, small, layout="original")
    with pytest.raises(ValueError, match="an output layer over all tokens"):
        save_hydra(tmp_path, settings, whole, np.arange(24, dtype=np.int32), layout="original")
    with pytest.raises(ValueError, match="has no output layers"):
        save_hydra(tmp_path, settings, whole)


def test_inspect_shows_a_head(tmp_path: Path) -> None:
    EAGLES["eagle3"]().save(tmp_path)
    shown = CliRunner().invoke(forerun, ["inspect", str(tmp_path)])
    assert shown.exit_code == 0
    assert "EAGLE-3" in shown.output
    assert "15 of 24" in shown.output
    facts = json.loads(CliRunner().invoke(forerun, ["inspect", str(tmp_path), "--json"]).output)
    assert facts["family"] == "eagle3"
    assert facts["guessed_tokens"] == 15
