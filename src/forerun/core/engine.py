"""The decode loop: one for plain decoding and for every drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.core.accept import walk
from forerun.core.protocols import Budget, Drafter, Policy, Stop, Target, Verdict
from forerun.core.report import Lap, Report
from forerun.core.tree import DraftTree, IntArray

PREFILL_ROWS = 512
"""Prompt tokens a forward: bounds activations and features, and how long a Ctrl-C waits."""


@dataclass(frozen=True)
class Step:
    """What one forward of the target added to the text.

    Attributes:
        tokens: emitted tokens, at least one (none only where the prompt already fills the context).
        origins: for each the drafter that guessed it, or "" where the target chose on its own.
        finish: why the text ends with this step ("length", "context", or what the stop condition said), or
            None.
        nodes: nodes[j] is where tokens[j] was chosen, in `verdict`, which is good until the next step.
        verdict: what the target computed for the tree.
    """

    tokens: list[int]
    origins: list[str]
    finish: str | None
    nodes: list[int]
    verdict: Verdict | None


def decode(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    policy: Policy,
    stop: Stop,
    max_tokens: int | None,
    report: Report,
    held: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Step]:
    """Continue `prompt` with the target's own text, step by step.

    Whenever the generator ends, is dropped, closed or broken by an exception, the target holds exactly the
    prompt's and the emitted tokens but the last (of a prompt that was not yet computed, a beginning), and
    another generation may start.

    Args:
        prompt: token ids, at least one.
        max_tokens: emit at most these, or None for as many as the context holds.
        report: a new one; is filled as it goes.
        held: leading tokens of the prompt that target and drafter both have from an earlier generation that
            was not broken: only what follows is computed. 0 starts anew.
        progress: called with (tokens of the prompt computed, tokens to compute) while the prompt is read.

    Raises:
        ValueError: an empty prompt, or one longer than the context.
    """
    if not 0 < len(prompt) <= target.context:
        raise ValueError(f"a prompt of {len(prompt)} tokens does not fit a context of {target.context}")
    text = list(prompt)
    report.prompt_tokens = len(prompt)
    end, reason = target.context, "context"
    if max_tokens is not None and len(prompt) + max_tokens <= end:
        end, reason = len(prompt) + max_tokens, "length"
    finish = reason if len(prompt) == end else None
    try:
        lap = Lap()
        ids = np.array(prompt, dtype=np.int32)
        missing = len(prompt) - 1 - _resume(target, drafter, ids, held)
        for done in _prefill(target, drafter, ids):
            report.prefilled = done
            report.prompt += lap()
            if progress is not None:
                progress(done, missing)
        if finish is not None:
            yield Step([], [], finish, [], None)
        while finish is None:
            lap = Lap()
            room = end - len(text)
            budget = _clamp(policy.plan(report, room), room, target)
            tree = drafter.propose(budget) if budget.nodes else DraftTree.chain(text[-1])
            tree = tree.fit(text[-1], nodes=budget.nodes, depth=budget.depth, vocab_size=target.vocab_size)
            report.draft += lap()
            verdict = target.verify(tree)
            report.verify += lap()
            walked = walk(tree, verdict)
            report.choose += lap()
            kept, finish = _cut(walked.tokens, stop, room, reason)
            tokens, path = walked.tokens[:kept], walked.path[:kept]
            target.commit(np.array(path, dtype=np.int32))
            drafter.observe(tokens, None if verdict.features is None else verdict.features[path])
            names = tree.origins or (drafter.name,) * len(tree)
            guessed = [names[node] for node in walked.path[1 : kept + 1]]
            origins = guessed + [""] * (kept - len(guessed))
            report.step(origins, walked.checked[:kept], Counter(names[1:]))
            report.other += lap()
            text += tokens
            yield Step(tokens, origins, finish, path, verdict)
    finally:
        if target.length >= len(text):  # broken between a commit and the yield of its tokens
            target.truncate(len(text) - 1)


def _resume(target: Target, drafter: Drafter, prompt: IntArray, held: int) -> int:
    """Go back to what target and drafter both hold of the prompt; how many of its tokens the target has
    then."""
    held = min(held, target.length + 1, len(prompt))
    target.truncate(max(held - 1, 0))
    if held:
        drafter.truncate(held)
    else:
        drafter.begin(prompt[:1], None)
    return target.length


def _prefill(target: Target, drafter: Drafter, prompt: IntArray) -> Iterator[int]:
    """Compute what is missing of the prompt but its last token, the drafter reading along; tokens done so
    far."""
    start = target.length
    for first in range(start, len(prompt) - 1, PREFILL_ROWS):
        last = min(first + PREFILL_ROWS, len(prompt) - 1)
        features = target.extend(prompt[first:last])
        drafter.observe(prompt[first + 1 : last + 1].tolist(), features)
        yield last - start


def _clamp(budget: Budget, room: int, target: Target) -> Budget:
    """A step emits one token more than it accepts, and every staged row needs its place."""
    depth = min(budget.depth, room - 1)
    nodes = min(budget.nodes, target.room - 1) if depth > 0 else 0
    return Budget(max(nodes, 0), max(depth, 0))


def _cut(tokens: list[int], stop: Stop, room: int, reason: str) -> tuple[int, str | None]:
    """How many of the chosen tokens are emitted, and why the text ends there, if it does."""
    for count, token in enumerate(tokens, start=1):
        why = stop(token)
        if why is None and count == room:
            why = reason
        if why is not None:
            return count, why
    return len(tokens), None
