"""The decode loop: one for plain decoding and for every drafter, for one sequence and for several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from forerun.core.accept import walk
from forerun.core.protocols import Budget, Drafter, Policy, Stop, Target, Verdict
from forerun.core.report import Lap, Report
from forerun.core.tree import DraftTree

AnyTarget = TypeVar("AnyTarget", bound=Target)

PREFILL_ROWS = 512
"""Prompt tokens a forward: bounds activations and features, and how long a Ctrl-C waits."""


class Step(NamedTuple):
    """What one forward of the target added to the text.

    Attributes:
        tokens: emitted tokens, at least one (none only where the prompt already fills the context).
        origins: for each the drafter that guessed it, or "" where the target chose on its own.
        finish: why the text ends with this step ("length", "context", or what the stop condition said), or
            None.
        nodes: nodes[j] is where tokens[j] was chosen, in `verdict`.
        verdict: what the target computed for the tree.
        tree: that was verified.
    """

    tokens: list[int]
    origins: list[str]
    finish: str | None
    nodes: list[int]
    verdict: Verdict | None
    tree: DraftTree | None = None


class Decoding(Generic[AnyTarget]):
    """One sequence being written: `read` the prompt, then `draft`, verify and `accept` until it is finished;
    `settle` in any case.

    Args:
        target: whose text it is.
        drafter: guesses ahead.
        prompt: token ids, at least one.
        policy: decides budgets.
        stop: knows where the text ends.
        max_tokens: emit at most these, or None for as many as the context holds.
        report: a new one; is filled as it goes.

    Raises:
        ValueError: an empty prompt, or one longer than the context.
    """

    def __init__(
        self,
        target: AnyTarget,
        drafter: Drafter,
        prompt: Sequence[int],
        *,
        policy: Policy,
        stop: Stop,
        max_tokens: int | None,
        report: Report,
    ) -> None:
        if not 0 < len(prompt) <= target.context:
            raise ValueError(f"a prompt of {len(prompt)} tokens does not fit a context of {target.context}")
        self.target = target
        self.report = report
        self.text = list(prompt)
        self._drafter = drafter
        self._policy = policy
        self._stop = stop
        self._end, self._reason = target.context, "context"
        if max_tokens is not None and len(prompt) + max_tokens <= self._end:
            self._end, self._reason = len(prompt) + max_tokens, "length"
        self.finish = self._reason if len(prompt) == self._end else None
        self._proposed = DraftTree.chain(self.text[-1])
        report.prompt_tokens = len(prompt)

    def read(
        self,
        held: int = 0,
        progress: Callable[[int, int], None] | None = None,
        *,
        other_drafter: bool = False,
    ) -> None:
        """Compute all of the prompt but its last token, and let the drafter read along.

        `held` leading tokens of it are there from an earlier generation that was not broken; with
        `other_drafter` this one did not draft for it, and reads their ids now (their features are gone).
        `progress` is called with (tokens computed, tokens to compute).
        """
        lap, prompt = Lap(), np.array(self.text, dtype=np.int32)
        prompt.flags.writeable = False  # drafters see it
        held = min(held, self.target.length + 1, len(prompt))
        self.target.truncate(max(held - 1, 0))
        if held and not other_drafter:
            self._drafter.truncate(held)
        else:
            self._drafter.begin(prompt[: max(held, 1)], None)
        start = self.target.length
        for first in range(start, len(prompt) - 1, PREFILL_ROWS):
            last = min(first + PREFILL_ROWS, len(prompt) - 1)
            features = self.target.extend(prompt[first:last])
            self._drafter.observe(prompt[first + 1 : last + 1].tolist(), features)
            self.report.prefilled = last - start
            self.report.prompt += lap()
            if progress is not None:
                progress(last - start, len(prompt) - 1 - start)

    def draft(self) -> DraftTree:
        """What to verify next: the drafter's tree made safe, or the root alone."""
        start, root = perf_counter(), self.text[-1]
        room = self._end - len(self.text)
        wish = self._policy.plan(self.report, room)
        depth = min(wish.depth, room - 1)  # a step emits one token more than it accepts
        nodes = min(wish.nodes, self.target.room - 1)  # every staged row needs its place
        if nodes > 0 and depth > 0:
            guesses = self._drafter.propose(Budget(nodes, depth))
            tree = guesses.fit(root, nodes=nodes, depth=depth, vocab_size=self.target.vocab_size)
        else:
            tree = DraftTree.chain(root)
        proposed = perf_counter()
        self.report.draft += proposed - start
        self._proposed = tree
        kept = self._policy.trim(tree, proposed - start)
        self.report.other += perf_counter() - proposed
        return kept

    def accept(self, tree: DraftTree, verdict: Verdict, seconds: float | None = None) -> Step:
        """Walk the tree, cut where the text ends, commit what is left. `seconds`: what the forward took, if
        it was for this tree alone."""
        report, start = self.report, perf_counter()
        accepted, chosen, checked = walk(tree, verdict)
        walked = perf_counter()
        report.choose += walked - start
        kept, self.finish = self._cut(chosen)
        tokens, path = chosen[:kept], accepted[:kept]
        self.target.commit(path)
        features = verdict.features
        if features is not None:
            a_beginning = path[-1] == kept - 1  # a slice is not copied
            features = features[:kept] if a_beginning else features[path]
        self._drafter.observe(tuple(tokens), features)  # which nobody can write to
        self._policy.learn(self._proposed, tokens, len(tree), seconds)
        if len(tree) == 1:
            origins = [""]
            report.step(origins)
        else:
            names = tree.origins or (self._drafter.name,) * len(tree)
            origins = [names[node] for node in accepted[1 : kept + 1]]
            origins += [""] * (kept - len(origins))
            report.step(origins, min(checked, kept), names[1:])
        self.text += tokens
        report.other += perf_counter() - walked
        return Step(tokens, origins, self.finish, path, verdict, tree)

    def settle(self) -> None:
        """Whatever happened, the target then holds the text that `accept` has given, but its last token."""
        if self.target.length >= len(self.text):
            self.target.truncate(len(self.text) - 1)

    def _cut(self, tokens: list[int]) -> tuple[int, str | None]:
        """How many of the chosen tokens are emitted, and why the text ends there, if it does."""
        for count, token in enumerate(tokens, start=1):
            why = self._stop(token)
            if why is None and len(self.text) + count == self._end:
                why = self._reason
            if why is not None:
                return count, why
        return len(tokens), None


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
    other_drafter: bool = False,
) -> Generator[Step, None, None]:
    """Continue `prompt` with the target's own text, step by step. Arguments as for `Decoding` and its `read`.

    Whenever the generator ends, is dropped, closed or broken by an exception, the target holds exactly the
    prompt's and the emitted tokens but the last (of a prompt that was not yet computed, a beginning), and
    another generation may start.
    """
    run = Decoding(target, drafter, prompt, policy=policy, stop=stop, max_tokens=max_tokens, report=report)
    try:
        run.read(held, progress, other_drafter=other_drafter)
        if run.finish is not None:
            yield Step([], [], run.finish, [], None)
        while run.finish is None:
            tree = run.draft()
            start = perf_counter()
            verdict = target.verify(tree)
            seconds = perf_counter() - start
            report.verify += seconds
            yield run.accept(tree, verdict, seconds)
    finally:
        run.settle()


def decode_together(
    runs: Sequence[Decoding[AnyTarget]],
    verify: Callable[[list[AnyTarget], list[DraftTree]], Sequence[Verdict]],
) -> Generator[tuple[int, Step], None, None]:
    """Write several sequences at once: each round verifies a tree of every unfinished one in one forward.

    `runs` have read their prompts. Steps come with the place of their sequence in `runs`. A sequence that is
    dropped from outside (its `finish` set) takes part no more. The seconds of a forward are shared evenly.
    """
    try:
        while active := [place for place, run in enumerate(runs) if run.finish is None]:
            trees = [runs[place].draft() for place in active]
            lap = Lap()
            verdicts = verify([runs[place].target for place in active], trees)
            share = lap() / len(active)
            for place, tree, verdict in zip(active, trees, verdicts, strict=True):
                runs[place].report.verify += share
                yield place, runs[place].accept(tree, verdict)
    finally:
        for run in runs:
            run.settle()
