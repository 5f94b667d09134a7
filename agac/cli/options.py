"""Reading flags that several commands share."""

from __future__ import annotations

import click


def read_variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """`--var NAME=VALUE`, any number of times."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--var {pair}: write NAME=VALUE")
        found[name] = value
    return found
