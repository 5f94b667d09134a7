"""Which rows a sample takes."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random


def sampled(ordinals: Iterable[int], size: int, seed: int) -> list[int]:
    """At most `size` of the numbers, each as likely as any other, in ascending order; holds no more than it gives.

    The same numbers and seed give the same sample on every machine. Numbers added at the end change it only where one
    of them is taken. (Vitter's algorithm R; only `random()` is promised to stay the same over versions of Python.)
    """
    draw = Random(seed).random  # noqa: S311 - chance, not secrecy
    taken: list[int] = []
    for count, ordinal in enumerate(ordinals):
        if count < size:
            taken.append(ordinal)
        elif (place := int(draw() * (count + 1))) < size:
            taken[place] = ordinal
    return sorted(taken)
