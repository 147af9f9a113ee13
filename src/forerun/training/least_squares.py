"""Linear maps from which training begins: they foretell best in squares, and are solved, not trained.

Least squares of a state are those of every linear image of it, so what foretells the target's states best
foretells best, too, the logits that its output layer makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from forerun.errors import InputError

RIDGE = 1e-3
"""What is added to the sum of squares of each input, as a share of it (ridge regression)."""

LEAST = 1e-9
"""And as a share of the largest one, for inputs that are always nothing."""


@torch.no_grad()
def fitted(
    rows: Iterable[tuple[Tensor, Sequence[Tensor]]], reads: Sequence[int]
) -> list[tuple[Tensor, Tensor]] | None:
    """Of each of some outputs the map that foretells it from the first inputs: weight [width, inputs], bias
    [width], float32; None where there are no rows.

    Args:
        rows: part after part, the inputs float32 [n, most of `reads`] and the outputs, [n, width] each.
        reads: how many inputs each output is foretold from.

    Raises:
        InputError: there are numbers too large to compute with.
    """
    squares: Tensor | None = None
    products: list[Tensor] = []
    for inputs, outputs in rows:
        inputs = F.pad(inputs, (1, 0), value=1.0)  # the first foretells the bias
        if squares is None:
            squares = inputs.new_zeros(inputs.shape[1], inputs.shape[1])
            products = [inputs.new_zeros(1 + n, y.shape[1]) for n, y in zip(reads, outputs, strict=True)]
        squares.addmm_(inputs.T, inputs)
        for product, output in zip(products, outputs, strict=True):
            product.addmm_(inputs[:, : len(product)].T, output.float())
    if squares is None or not squares[0, 0]:
        return None
    if not all(bool(sums.isfinite().all()) for sums in (squares, *products)):
        raise InputError("hidden states of --data are too large to compute with; name others")
    squares = squares.double()
    each = squares.diagonal()
    each += RIDGE * each + LEAST * each.max()
    solved = [
        torch.linalg.solve(squares[: len(product), : len(product)], product.double()).T.float()
        for product in products
    ]
    return [(one[:, 1:].contiguous(), one[:, 0].contiguous()) for one in solved]
