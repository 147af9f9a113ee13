"""A draft tree with its accepted path, in lines of text and as an SVG picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from forerun.core.engine import Step
from forerun.core.tree import DraftTree
from forerun.words import counted

ACROSS, DOWN = 130, 26  # pixels from a depth to the next, and from a leaf to the next
MARGIN = 20


@dataclass(frozen=True)
class Picture:
    """A verified tree. `accepted`: its nodes that became text, the root first; `said`: what came next."""

    tree: DraftTree
    accepted: tuple[int, ...]
    said: int


class TreeWatcher:
    """Keeps the tree of a run that had the most guesses accepted; of equals one with the most branches."""

    def __init__(self) -> None:
        self.best: Picture | None = None
        self._rank = (-1, -1)

    def __call__(self, step: Step) -> None:
        if step.tree is None or not step.tokens:
            return
        guessed = sum(origin != "" for origin in step.origins)
        leaves = sum(not children for children in step.tree.children)
        if (guessed, leaves) > self._rank:
            self._rank = (guessed, leaves)
            self.best = Picture(step.tree, tuple(step.nodes), step.tokens[-1])


def as_text(picture: Picture, spell: Callable[[int], str]) -> str:
    """The tree in lines, the accepted path marked with a star. `spell`: a token's text."""
    tree, children = picture.tree, picture.tree.children
    right = len(picture.accepted) - 1
    guesses = counted(len(tree) - 1, "guess", "guesses")
    lines = [f"a tree of this run: {guesses} checked in one forward, {right} of them right"]

    def add(node: int, before: str, last: bool) -> None:
        branch = "" if node == 0 else "└─ " if last else "├─ "
        mark = "*" if node in picture.accepted else " "
        lines.append(f"{before}{branch}{mark}{_label(tree, node, spell)}")
        inner = before if node == 0 else before + ("   " if last else "│  ")
        for child in children[node]:
            add(child, inner, child == children[node][-1])

    add(0, "", True)
    lines.append(f"then the model itself said {_quoted(spell(picture.said))}")
    return "\n".join(lines)


def as_svg(picture: Picture, spell: Callable[[int], str]) -> str:
    """The same as a picture of its own."""
    tree, depths = picture.tree, picture.tree.depths
    rows = _rows(tree)
    width = 2 * MARGIN + ACROSS * (max(depths) + 1)
    height = 2 * MARGIN + DOWN * (int(max(rows)) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace"'
        f' font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    place = [
        (MARGIN + ACROSS * depth, MARGIN + DOWN * row + DOWN / 2)
        for depth, row in zip(depths, rows, strict=True)
    ]
    for node in range(1, len(tree)):
        (x, y), (x2, y2) = place[int(tree.parents[node])], place[node]
        style = 'stroke="#1a7f37" stroke-width="3"' if node in picture.accepted else 'stroke="#999"'
        middle = (x + x2) / 2
        parts.append(
            f'<path d="M{x:.0f},{y:.1f} C{middle:.0f},{y:.1f} {middle:.0f},{y2:.1f} {x2:.0f},{y2:.1f}"'
            f' fill="none" {style}/>'
        )
    for node, (x, y) in enumerate(place):
        right = node in picture.accepted
        colour, weight = ("#1a7f37", "bold") if right else ("#555", "normal")
        label = escape(_label(tree, node, spell))
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + 7:.0f}" y="{y - 5:.1f}" fill="{colour}" font-weight="{weight}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _rows(tree: DraftTree) -> list[float]:
    """Where each node stands from top to bottom: leaves one below the other, others amid their children."""
    children, rows = tree.children, [0.0] * len(tree)
    leaves = 0
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += reversed(children[node])
        if not children[node]:
            rows[node] = leaves
            leaves += 1
    for node in reversed(order):
        if children[node]:
            rows[node] = (rows[children[node][0]] + rows[children[node][-1]]) / 2
    return rows


def _label(tree: DraftTree, node: int, spell: Callable[[int], str]) -> str:
    chance = "" if tree.chances is None or node == 0 else f" {tree.chances[node]:.2f}"
    return _quoted(spell(int(tree.tokens[node]))) + chance


def _quoted(text: str) -> str:
    """A token's text, safe on a terminal; spaces can be seen."""
    shown = "".join("\\n" if c == "\n" else "·" if c == " " else c if c.isprintable() else "?" for c in text)
    return shown or "''"
