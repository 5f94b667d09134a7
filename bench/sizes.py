"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: rows for each scenario, and how often. `wide`: rows, and calls in flight.
    `jobs`: rows with a latency, and of two long ones."""

    runs: int
    throughput: int
    latency: int
    latency_seconds: float
    wide: tuple[int, int]
    memory: tuple[int, int]
    rerun: tuple[int, int]
    starts: int
    simulator: int
    reading: int
    large_megabytes: int
    scale: tuple[int, int]
    rate: tuple[int, int, float]
    stages: int
    walked: tuple[int, int]
    reduced: tuple[int, int]
    batched: tuple[int, int]
    jobs: tuple[int, int, int]


FULL = Sizes(
    3,
    20_000,
    2_000,
    0.5,
    (20_000, 1_000),
    (20_000, 200_000),
    (100_000, 100_000),
    10,
    10_000,
    200_000,
    200,
    (100_000, 1_000_000),
    (2_000, 20, 20.0),
    1_000,
    (10_000, 20),
    (100_000, 1_000_000),
    (200_000, 1_000_000),
    (100, 100_000, 1_000_000),
)
QUICK = Sizes(
    3, 5_000, 640, 0.5, (5_000, 500), (20_000, 50_000), (20_000, 4_000), 10, 2_000, 50_000, 50, (10_000, 50_000),
    (600, 20, 10.0), 1_000, (500, 20), (10_000, 50_000), (20_000, 100_000), (100, 10_000, 50_000),
)  # fmt: skip
TINY = Sizes(
    1, 40, 40, 0.02, (40, 20), (20, 40), (40, 20), 1, 20, 100, 1, (20, 40), (40, 20, 0.5), 20, (20, 4), (20, 250),
    (20, 40), (20, 20, 40),
)  # fmt: skip
"""TINY only shows that everything works: its figures say nothing."""
