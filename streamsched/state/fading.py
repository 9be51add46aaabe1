"""Sums in which what is old counts less: half after one half-life, a quarter after two.

Fixed point on integers, so that every machine gets the same bits: a power of two with a broken exponent comes from
square roots of integers, and no floating point is involved.

Source: `fair-share.md`, section 3.3, usage mode `decay`.
"""

from __future__ import annotations

from math import isqrt

#: Values are kept in parts of 2^-64.
BITS = 64
ONE = 1 << BITS
#: 1 / ln 2, in parts of 2^-64.
_PER_LN2 = 0x171547652B82FE177

_WORK_BITS = 128


def _tables() -> tuple[tuple[int, ...], ...]:
    """Return 2 to the power of minus each fraction of 8 bits, then of the next 8 bits, ..., in parts of 2^-128."""
    tables: list[tuple[int, ...]] = []
    root = 1 << (_WORK_BITS - 1)
    for _ in range(BITS // 8):
        powers = [1 << _WORK_BITS]
        for _ in range(8):  # The powers of -1/2, -1/4, -1/8, ...: each is the root of the one before.
            root = isqrt(root << _WORK_BITS)
            powers = [choice for power in powers for choice in (power, power * root >> _WORK_BITS)]
        tables.append(tuple(powers))
    return tuple(tables)


_TABLES = _tables()


def fade(elapsed_ms: int, half_life_ms: int) -> int:
    """Return what is left of `ONE` after some time.

    >>> fade(0, 10) == ONE, fade(10, 10) == ONE // 2, fade(30, 10) == ONE // 8
    (True, True, True)
    """
    halvings, rest = divmod(elapsed_ms, half_life_ms)
    if halvings > BITS:
        return 0
    exponent = (rest << BITS) // half_life_ms
    left = 1 << _WORK_BITS
    for position, powers in enumerate(_TABLES, start=1):
        left = left * powers[exponent >> (BITS - 8 * position) & 0xFF] >> _WORK_BITS
    return left >> (_WORK_BITS - BITS + halvings)


class FadingSum:
    """A sum of amounts, each of which fades from its own moment on. Amounts are in parts of 2^-64.

    Use needs no more than this: GPUs that are held from s to e come to ``gpus x h/ln2 x (2^-((t-e)/h) - 2^-((t-s)/h))``
    at t, so the sum over all of them is ``h/ln2`` times what is held now less the fading sum of all that was taken up,
    givings back counted as negative.
    """

    __slots__ = ("amount", "as_of_ms")

    def __init__(self) -> None:
        self.amount = 0
        self.as_of_ms = 0

    def at(self, now_ms: int, half_life_ms: int) -> int:
        """Return what is left of the sum."""
        if not self.amount or now_ms == self.as_of_ms:
            return self.amount
        return self.amount * fade(now_ms - self.as_of_ms, half_life_ms) >> BITS

    def add(self, amount: int, since_ms: int, now_ms: int, half_life_ms: int) -> None:
        """Add an amount that has been fading since a moment."""
        self.amount = self.at(now_ms, half_life_ms) + (amount * fade(now_ms - since_ms, half_life_ms) >> BITS)
        self.as_of_ms = now_ms


def fading_time(level: int, taken: FadingSum, now_ms: int, half_life_ms: int) -> int:
    """Return the GPU-time behind a level, in parts of 2^-64 of a GPU-millisecond, old time counted less.

    Args:
        level: GPUs held now.
        taken: What was taken up and given back to come there.
        now_ms: The present.
        half_life_ms: GPU-time of this age counts half.
    """
    return ((level << BITS) - taken.at(now_ms, half_life_ms)) * half_life_ms * _PER_LN2 >> BITS
