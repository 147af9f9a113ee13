"""Drafting heads against a reading of the published equations in plain torch, in float32, for every
layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conformance.tiny_cpu import tiny_cpu_backend, tiny_weights
from forerun import _core
from forerun.models.heads import open_head
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.heads import EAGLES, HYDRAS, MEDUSAS, Sizes, TinyHead

torch = pytest.importorskip("torch")

TARGET = tiny_cpu_backend()
VOCAB = TARGET.config.vocab_size
TEXT = np.random.default_rng(2).integers(0, VOCAB, 20).astype(np.int32)
EPS = 1e-5


def of_target(taps: tuple[int, ...]):  # type: ignore[no-untyped-def]
    """Features [n, taps * hidden] of TEXT, the embedding and the head."""
    cache = TARGET.new_cache(64)
    states = TARGET.forward(Rows.chain(TEXT, cache), np.zeros(0, dtype=np.int32), (*taps,)).features.copy()
    embedding = TARGET.forward(
        Rows.chain(np.arange(VOCAB, dtype=np.int32), TARGET.new_cache(64)), np.zeros(0, dtype=np.int32), (0,)
    ).features[:, 0].copy()  # fmt: skip
    return torch.tensor(states).flatten(1), torch.tensor(embedding)


def rms(x, weight):  # type: ignore[no-untyped-def]
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def rotated(x):  # type: ignore[no-untyped-def]
    """x [n, heads, dim] at positions 0, 1, ..."""
    n, _, dim = x.shape
    angles = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def block(w, at, x, residual, sizes):  # type: ignore[no-untyped-def]
    """A decoder layer from its attention's input on."""
    n = x.shape[0]

    def linear(name, value):  # type: ignore[no-untyped-def]
        result = value @ w[f"{at}{name}.weight"].T
        return result + w[f"{at}{name}.bias"] if f"{at}{name}.bias" in w else result

    q = rotated(linear("self_attn.q_proj", x).view(n, sizes.heads, -1))
    k = rotated(linear("self_attn.k_proj", x).view(n, sizes.kv_heads, -1))
    v = linear("self_attn.v_proj", x).view(n, sizes.kv_heads, -1)
    k, v = (t.repeat_interleave(sizes.heads // sizes.kv_heads, 1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / sizes.head_dim**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    x = residual + linear("self_attn.o_proj", torch.einsum("hij,jhd->ihd", scores, v).reshape(n, -1))
    y = rms(x, w[f"{at}post_attention_layernorm.weight"])
    inner = torch.nn.functional.silu(linear("mlp.gate_proj", y)) * linear("mlp.up_proj", y)
    return x + linear("mlp.down_proj", inner)


class Eagle:
    """The equations. `name` says which of them hold."""

    def __init__(self, name: str, head: TinyHead, target_embedding, target_head) -> None:  # type: ignore[no-untyped-def]
        self.w = {k: torch.tensor(v) for k, v in head.arrays.items()}
        self.first = name.startswith("eagle,") or name == "eagle"
        self.sizes = Sizes()
        self.residual = "residual" in name or name == "speculators"
        self.output = "input_norm" in name
        self.embedding = self.w.get("embed_tokens.weight", target_embedding)
        self.head = self.w.get("lm_head.weight", target_head)
        self.at = next(k for k in head.arrays if "self_attn.q_proj.weight" in k).partition("self_attn")[0]
        self.tokens = torch.arange(self.head.shape[0])
        if "d2t" in self.w:
            self.tokens = torch.arange(len(self.w["d2t"])) + self.w["d2t"]
            if "lm_head.weight" not in self.w:  # the tokens of the text too, in the order in which they come
                self.tokens = torch.tensor(list(dict.fromkeys([*self.tokens.tolist(), *TEXT])))
                self.head = target_head[self.tokens]

    def states(self, features):  # type: ignore[no-untyped-def]
        if self.first:
            return features
        if "input_norm.weight" in self.w:
            features = rms(features, self.w["input_norm.weight"])
        if "fc_norm.0.weight" in self.w:
            parts = features.view(len(features), 3, -1)
            features = torch.cat([rms(parts[:, i], self.w[f"fc_norm.{i}.weight"]) for i in range(3)], -1)
        return features @ self.w["fc.weight"].T

    def forward(self, tokens, states):  # type: ignore[no-untyped-def]
        """Logits, and what is handed to the next step."""
        w, x = self.w, self.embedding[tokens]
        if self.first:
            if "embedding_layernorm.weight" in w:
                x = rms(x, w["embedding_layernorm.weight"])
            if "hidden_states_layernorm.weight" in w:
                states = rms(states, w["hidden_states_layernorm.weight"])
            fc = "fusion_fc" if "fusion_fc.weight" in w else "fc"
            x = torch.cat([x, states], -1) @ w[f"{fc}.weight"].T + w.get(f"{fc}.bias", torch.zeros(()))
            x = block(w, self.at, x, x, self.sizes)
            out = rms(x, w["pre_lm_head_layernorm.weight"]) if "pre_lm_head_layernorm.weight" in w else x
            return out @ self.head.T, x
        normed = rms(states, w[f"{self.at}hidden_norm.weight"])
        both = torch.cat([rms(x, w[f"{self.at}input_layernorm.weight"]), normed], -1)
        x = block(w, self.at, both, normed if self.residual else states, self.sizes)
        if "layers.1.input_layernorm.weight" in w:
            x = block(w, "layers.1.", rms(x, w["layers.1.input_layernorm.weight"]), x, self.sizes)
        out = rms(x, w["norm.weight"])
        return out @ self.head.T, out if self.output else x


def choosing() -> _core.SamplingSettings:
    return core_settings(Pipeline(SamplingParams(), VOCAB, (), 1), 0)


@pytest.mark.parametrize("name", EAGLES)
def test_eagle_heads(name: str, tmp_path: Path) -> None:
    tiny = EAGLES[name]()
    head = open_head(tiny.save(tmp_path))
    loaded = TARGET.load_head(head, dtype="f32")
    features, embedding = of_target(loaded.taps)
    with torch.no_grad():
        reading = Eagle(name, tiny, embedding, torch.tensor(tiny_weights(TARGET.config)["lm_head.weight"]))
        states = reading.states(features[:-1])
        theirs, handed = reading.forward(torch.tensor(TEXT[1:]).long(), states)

    drafter = _core.EagleDrafter(loaded.core, choosing(), "f32", 64)
    drafter.observe(TEXT[:1], None)
    for end in range(2, len(TEXT) + 1):  # a pair at a time
        drafter.observe(TEXT[end - 1 : end], features[end - 2 : end - 1].numpy())
        drafter.propose(4, 2, 0.0)
        ours, known_tokens = drafter.logits, theirs[end - 2].numpy()
        if name == "eagle3, the target's head":
            known_tokens = known_tokens[: head.outputs + len({*TEXT[:end]} - {*head.tokens.tolist()})]
        difference = np.linalg.norm(ours - known_tokens) / np.linalg.norm(known_tokens)
        assert difference < 1e-4

    tree = drafter.propose(14, 4, 0.0)
    tokens, chances = tree.ids, tree.odds
    assert len(tree) == 15
    assert chances is not None
    deepest = 0
    for node in range(1, 15):
        path = tree.path(node)[1:]
        deepest = max(deepest, len(path))
        with torch.no_grad():
            text, known, chance = torch.tensor(TEXT[1:]).long(), states, 1.0
            for step in path:
                out, handed = reading.forward(text, known)
                ids = reading.tokens.tolist()
                chance *= float(out[-1].softmax(-1)[ids.index(tokens[step])])
                text = torch.cat([text, torch.tensor([tokens[step]])])
                known = torch.cat([known, handed[-1:]])
        assert abs(chance - chances[node]) < 1e-3 * chance + 1e-6
    assert deepest > 1


@pytest.mark.parametrize("name", MEDUSAS)
def test_medusa_heads(name: str, tmp_path: Path) -> None:
    tiny = MEDUSAS[name]()
    loaded = TARGET.load_head(open_head(tiny.save(tmp_path)), dtype="f32")
    features, _ = of_target(loaded.taps)
    w = {k.removeprefix("medusa_head."): torch.tensor(v) for k, v in tiny.arrays.items()}
    for head in range(3):
        x = features[7]
        if name.startswith("vllm"):
            x = x + torch.nn.functional.silu(x @ w[f"blocks.{head}.layers.0.weight"].T)
            theirs = x @ w["lm_heads.0.weight" if "one" in name else f"lm_heads.{head}.weight"].T
        else:
            blocks = 2 if "two" in name else 1
            for at in range(blocks):
                y = x @ w[f"{head}.{at}.linear.weight"].T + w[f"{head}.{at}.linear.bias"]
                x = x + torch.nn.functional.silu(y)
            theirs = x @ w[f"{head}.{blocks}.weight"].T
        ours = loaded.core.logits(head, features[7].numpy())
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-3, atol=1e-4)


class Hydra:
    """The equations of Ankner et al. (arXiv 2402.05109), with the blocks that a checkpoint has."""

    def __init__(self, tiny: TinyHead, target_embedding, target_head) -> None:  # type: ignore[no-untyped-def]
        self.w = {name: torch.tensor(values) for name, values in tiny.arrays.items()}
        self.embedding = target_embedding
        self.rows = target_head  # of `tokens`, where the heads have no output layers
        self.tokens = torch.arange(VOCAB)
        if "d2t" in self.w:  # and the tokens of the text, in the order in which they come
            own = (torch.arange(len(self.w["d2t"])) + self.w["d2t"]).tolist()
            self.own = len(own)
            self.tokens = torch.tensor(list(dict.fromkeys([*own, *TEXT.tolist()])))
            self.rows = target_head[self.tokens]

    def logits(self, state, path: list[int]):  # type: ignore[no-untyped-def]
        """Of the token after `path`, whose first token follows the state's."""
        head = len(path) - 1
        c = torch.cat([state, *(self.embedding[token] for token in path)])
        blocks = [
            name.removesuffix("linear.weight")
            for name in sorted(self.w)
            if name.startswith(f"hydra_mlp.{head}.") and name.endswith("linear.weight")
        ]
        for place, at in enumerate(blocks):
            inner = torch.nn.functional.silu(self.w[f"{at}linear.weight"] @ c + self.w[f"{at}linear.bias"])
            over = (
                c if place else self.w[f"{at}res_connection.weight"] @ c + self.w[f"{at}res_connection.bias"]
            )
            c = over + inner
        out = next((name for name in self.w if name.startswith(f"hydra_lm_head.{head}.")), None)
        if out is None:
            return self.rows @ c
        at = out.rpartition(".")[0]
        return self.w[f"{at}.weight"] @ c + self.w.get(f"{at}.bias", torch.zeros(()))


@pytest.mark.parametrize("name", HYDRAS)
def test_hydra_heads(name: str, tmp_path: Path) -> None:
    """Logits of each head, and the chances of a tree that sees its own guesses."""
    tiny = HYDRAS[name]()
    loaded = TARGET.load_head(open_head(tiny.save(tmp_path)), dtype="f32")
    features, embedding = of_target(loaded.taps)
    reading = Hydra(tiny, embedding, torch.tensor(tiny_weights(TARGET.config)["lm_head.weight"]))
    own = getattr(reading, "own", VOCAB)
    assert isinstance(loaded.core, _core.HydraHeads)
    for at in (4, 9):
        for depth in (1, 2, 3):
            path = TEXT[at + 1 : at + 1 + depth].tolist()
            theirs = reading.logits(features[at], path)[:own].numpy()
            ours = loaded.core.logits(features[at].numpy(), path)
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)

    drafter = loaded.drafter(choosing(), 64)
    drafter.observe(TEXT[:1], None)
    drafter.observe(TEXT[1:], features[:-1].numpy())
    tree = drafter.propose(14, 8, 0.0)
    assert len(tree) == 15
    assert tree.odds is not None
    deepest, ids = 0, reading.tokens.tolist()
    for node in range(1, 15):
        path, chance = [int(TEXT[-1])], 1.0
        for step in tree.path(node)[1:]:
            shares = reading.logits(features[-2], path).softmax(-1)
            chance *= float(shares[ids.index(tree.ids[step])])
            path.append(tree.ids[step])
        deepest = max(deepest, len(path) - 1)
        assert abs(chance - tree.odds[node]) < 1e-3 * chance + 1e-6
    assert deepest > 1


@pytest.mark.parametrize("name", HYDRAS)
@pytest.mark.parametrize("dtype", ["f32", "q8", "q4"])
def test_a_hydra_trees_shape_changes_no_chance(name: str, dtype: str, tmp_path: Path) -> None:
    """To the bit: a node's chance does not depend on which others are computed beside it."""
    loaded = TARGET.load_head(open_head(HYDRAS[name]().save(tmp_path)), dtype=dtype)
    features, _ = of_target(loaded.taps)
    found: dict[tuple[int, ...], float] = {}
    for nodes in (1, 2, 3, 7, 20, 60):
        drafter = loaded.drafter(choosing(), 64)
        drafter.observe(TEXT[:1], None)
        drafter.observe(TEXT[1:], features[:-1].numpy())
        tree = drafter.propose(nodes, 3, 0.0)
        assert tree.odds is not None
        for node in range(1, len(tree)):
            path = tuple(tree.ids[step] for step in tree.path(node)[1:])
            assert found.setdefault(path, tree.odds[node]) == tree.odds[node]
    assert max(map(len, found)) == 3
