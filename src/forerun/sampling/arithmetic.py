"""Logarithm and exponential by a recipe, so that other languages can give the same bits.

Everything here is IEEE 754 double precision with each operation rounded on its own (no fused multiply-add) in
the order written. Accurate to a few units in the last place; what matters is that it is *specified*.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

LN2 = 0.6931471805599453
LN2_HIGH = 6.93147180369123816490e-01  # LN2 in two parts: k * LN2_HIGH is exact for |k| < 2**20
LN2_LOW = 1.90821492927058770002e-10
LOG2E = 1.4426950408889634
SQRT_HALF = 0.7071067811865476
LEAST_EXPONENT = -708.0
LANES = 8


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive, normal x.

    x = m 2^e with m in [SQRT_HALF, 2 SQRT_HALF); f = (m - 1) / (m + 1), z = f f;
    p = Horner over 1/21, 1/19, ..., 1/3 in z; log x = e LN2 + 2 (f + f (z p)).
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < SQRT_HALF
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    e = (exponent - low).astype(np.float64)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    z = f * f
    p = np.full_like(z, 1.0 / 21.0)
    for odd in (19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        p = p * z + 1.0 / odd
    result: Doubles = e * LN2 + 2.0 * (f + f * (z * p))
    return result


def exp(x: Doubles) -> Doubles:
    """Exponential of x <= 0; exactly 0 below LEAST_EXPONENT.

    k = floor(x LOG2E + 0.5); r = (x - k LN2_HIGH) - k LN2_LOW; p = Horner over 1/12!, 1/11!, ..., 1/1!, 1/0!
    in r; exp x = p 2^k.
    """
    x = np.maximum(x, LEAST_EXPONENT - 1.0)
    k = np.floor(x * LOG2E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    factorial = 479001600.0
    p = np.full_like(r, 1.0 / factorial)
    for n in range(12, 0, -1):
        factorial /= n
        p = p * r + 1.0 / factorial
    result: Doubles = np.where(x < LEAST_EXPONENT, 0.0, np.ldexp(p, k.astype(np.int32)))
    return result


def lane_sum(x: Doubles) -> float:
    """Sum in a fixed order that vector units like: lane j adds x[j], x[j + 8], x[j + 16], ... to 0 in this
    order; the answer is ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7)).
    """
    padded = np.zeros((-(-x.size // LANES) + 1, LANES))
    padded[1:].reshape(-1)[: x.size] = x
    lanes = np.add.accumulate(padded, axis=0)[-1]
    pairs = lanes[0::2] + lanes[1::2]
    return float((pairs[0] + pairs[1]) + (pairs[2] + pairs[3]))
