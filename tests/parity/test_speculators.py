"""EAGLE-3 heads that are written here, read by speculators: the same logits in every step of unrolling."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
speculators = pytest.importorskip("speculators")

from forerun.models.checkpoint import open_checkpoint  # noqa: E402
from forerun.training.batches import Batch  # noqa: E402
from forerun.training.eagle3 import Eagle3  # noqa: E402
from support.tiny import Tiny, vocabulary, write_tiny_hf  # noqa: E402

STEPS, ROWS = 3, 20
VOCAB = len(vocabulary())
GUESSED = torch.arange(0, VOCAB, 3)


@pytest.mark.parametrize("layout", ["speculators", "original"])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_saved_eagle3_heads(arch: str, layout: str, tmp_path: Path) -> None:
    """The original layout by way of speculators' converter."""
    tiny = Tiny(arch=arch, hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, layers=8)
    target = write_tiny_hf(tmp_path / "target", tiny)
    torch.manual_seed(0)
    head = Eagle3(open_checkpoint(target), GUESSED)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_((parameter + 0.2 * torch.rand_like(parameter)).bfloat16())  # as files have them
    folder = tmp_path / "head"
    head.save(folder, str(target), "original" if layout == "original" else "speculators")
    if layout == "original":
        from speculators.convert import convert_model

        convert_model(str(folder), str(target), "eagle3", output_path=str(tmp_path / "converted"))
        folder = tmp_path / "converted"

    config = speculators.SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    other = speculators.SpeculatorModel.from_pretrained(str(folder), config=config, dtype=torch.float32)
    assert other.config.eagle_aux_hidden_state_layer_ids == [2, 4, 5]
    assert torch.equal(other.d2t + torch.arange(len(GUESSED)), GUESSED)
    if layout == "original":  # the embedding is the target's, which is rounded in training
        with torch.no_grad():
            other.embed_tokens.weight.copy_(head.embedding.float())
    theirs: list[torch.Tensor] = []
    other.lm_head.register_forward_hook(lambda module, given, made: theirs.append(made[0]))

    tokens = torch.randint(VOCAB, (1, ROWS + 1))
    features = torch.randn(1, ROWS, 4, 64)
    with torch.no_grad():
        other(
            hidden_states=features[:, :, :3].flatten(2),
            input_ids=tokens[:, 1:],
            document_ids=torch.zeros(1, ROWS, dtype=torch.long),
            ttt_steps=STEPS,
        )
        steps = head.passes(Batch(tokens, features, torch.ones(1, ROWS, dtype=torch.bool)), STEPS)
        ours = [head.said(state) @ head.head.float().T for state in steps]
    for step in range(STEPS):  # a row of theirs stays in its place, where ours moves on with the tokens
        difference = ours[step][step:] - theirs[step][: ROWS - step]
        assert difference.norm() < 1e-4 * ours[step][step:].norm(), step
