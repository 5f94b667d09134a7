"""Stages that ask each row several times, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agac.cli.shown.words import counted


def replicas_words(stage: Mapping[str, Any]) -> str:
    """`3, vote on label`: how often a stage asks; empty where it asks once."""
    if stage.get("replicas", 1) == 1:
        return ""
    return f"{stage['replicas']}, vote on {stage['vote']}" if stage.get("vote") else f"{stage['replicas']}"


def agreement_lines(stages: Iterable[Mapping[str, Any]]) -> list[str]:
    """How far the replicas of each stage agreed."""
    lines = []
    for stage in stages:
        told = stage.get("agreement")
        if told and told["rows"]:
            alike = f"{told['unanimous']:.0%} of {counted(told['rows'], 'row')} unanimous"
            lines.append(f"Agreement at {stage['name']}: {told['mean']:.2f} in the mean, {alike}")
    return lines
