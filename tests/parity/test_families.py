"""Logits and greedy text against transformers in float32, for every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.backends.cpu import load_backend
from forerun.models.backend import Backend
from forerun.models.checkpoint import open_checkpoint
from forerun.models.hub import DEFAULT_MODEL, resolve_model
from forerun.models.rows import Cache, Rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "llama tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama3 rope": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama linear rope": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama wide heads": ("LlamaConfig", {"head_dim": 40}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral window": ("MistralConfig", {"sliding_window": 24}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": False}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "use_sliding_window": False}),
}
TOLERANCE = 1e-4  # norm of the difference over the norm


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def chunk(backend: Backend, cache: Cache, tokens: np.ndarray, wanted: int) -> np.ndarray:
    """Logits of the last `wanted` tokens, all committed."""
    n = len(tokens)
    rows = np.arange(n - wanted, n, dtype=np.int32)
    logits = backend.forward(Rows.chain(tokens.astype(np.int32), cache), rows).logits.copy()
    cache.commit(np.arange(n, dtype=np.int32))
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family(family: str, tmp_path: Path) -> None:
    kind, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SIZES, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():  # biases and norms are trivial unless trained
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
    model.save_pretrained(tmp_path, safe_serialization=True)
    tokens = np.random.default_rng(3).integers(0, 320, 150)
    with torch.no_grad():
        outputs = model(torch.tensor(tokens)[None], output_hidden_states=True)
    theirs = outputs.logits[0].numpy()
    backend = load_backend(open_checkpoint(tmp_path), dtype="f32")
    whole = backend.forward(
        Rows.chain(tokens.astype(np.int32), backend.new_cache(200)),
        np.arange(150, dtype=np.int32),
        (0, 1, 2, 3),
    )
    assert relative(whole.logits, theirs) < TOLERANCE
    for state in range(4):
        assert relative(whole.features[:, state], outputs.hidden_states[state][0].numpy()) < TOLERANCE
    cache = backend.new_cache(200)
    parts = [chunk(backend, cache, tokens[:100], 100)]
    parts += [chunk(backend, cache, tokens[i : i + 1], 1) for i in range(100, 150)]
    np.testing.assert_array_equal(np.concatenate(parts), whole.logits)


def test_sharded_bf16(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="100KB", safe_serialization=True)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = np.random.default_rng(4).integers(0, 320, 60)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)[None]).logits[0].numpy()
    backend = load_backend(open_checkpoint(tmp_path), dtype="f32")
    assert relative(chunk(backend, backend.new_cache(100), tokens, 60), theirs) < TOLERANCE


PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "1, 1, 2, 3, 5, 8,",
    '{"name": "Ada", "born": 1815, "died":',
)


@pytest.fixture(scope="module")
def default_model() -> tuple[Backend, object, object]:
    """The default model here and in transformers, both in float32, and transformers' tokenizer."""
    path = resolve_model(DEFAULT_MODEL)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return load_backend(open_checkpoint(path), dtype="f32"), theirs, tokenizer


def test_default_model(default_model: tuple[Backend, object, object]) -> None:
    backend, model, _ = default_model
    tokens = np.random.default_rng(0).integers(0, 49000, 200)
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)[None]).logits[0].numpy()  # type: ignore[operator]
    assert relative(chunk(backend, backend.new_cache(256), tokens, 200), theirs) < TOLERANCE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_of_the_default_model(default_model: tuple[Backend, object, object], prompt: str) -> None:
    """64 greedy tokens from the same ids."""
    backend, model, tokenizer = default_model
    ids = tokenizer(prompt)["input_ids"]  # type: ignore[operator]
    with torch.no_grad():
        theirs = model.generate(  # type: ignore[attr-defined]
            torch.tensor([ids]), max_new_tokens=64, min_new_tokens=64, do_sample=False
        )[0].tolist()
    cache = backend.new_cache(256)
    ours = list(ids)
    logits = chunk(backend, cache, np.array(ids), 1)
    forbidden = list(backend.config.eos_token_ids)  # as min_new_tokens does
    while len(ours) < len(theirs):
        logits[0, forbidden] = -np.inf
        ours.append(int(logits[0].argmax()))
        logits = chunk(backend, cache, np.array(ours[-1:]), 1)
    assert ours == theirs
