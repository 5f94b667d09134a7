"""The page on batches: its picture has every step, and what it has others run by a clock is right."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import yaml
from consoles import file_of
from pages import ROOT, blocks

from agac.cli.main import cli
from agac.providers.batch import BatchState
from agac.store.batches import BatchStep

PAGE = ROOT / "docs/guide/batch.md"
BLOCKS = {path: block.text for block in blocks(PAGE) if (path := file_of(block))}
ACTION: dict[Any, Any] = yaml.safe_load(BLOCKS[".github/workflows/nightly.yml"])
STEPS: list[dict[str, Any]] = ACTION["jobs"]["batch"]["steps"]


def commands(text: str) -> Iterator[list[str]]:
    """Every `agac …` in a text of a shell, as words."""
    for command in re.split(r"\|\||&&|[|;\n]", text):
        words = shlex.split(command.strip())
        if "agac" in words[:2] and words[0] in ("agac", "if"):
            yield words[words.index("agac") + 1 :]


def parsed(words: list[str]) -> str:
    """The command that these words call, having understood all of them."""
    with cli.make_context("agac", list(words)) as context:
        group: click.Group = cli
        rest = [*context._protected_args, *context.args]
        path = []
        while True:
            name, command, rest = group.resolve_command(context, rest)
            assert command is not None
            path.append(str(name))
            if not isinstance(command, click.Group):
                break
            group = command
        command.make_context(path[-1], rest, parent=context)
    return " ".join(path)


def test_the_page_has_every_command_and_state_of_a_batch_and_its_picture_every_step() -> None:
    picture, text = (ROOT / "docs/assets/batch.svg").read_text("utf-8"), PAGE.read_text("utf-8")
    assert {step.value for step in BatchStep} == set(re.findall(r">([A-Z]{2,}(?:_[A-Z]+)*)<", picture))
    assert [state for state in BatchState if f"`{state}`" not in text] == []
    batch = cli.get_command(click.Context(cli), "batch")
    assert isinstance(batch, click.Group)
    assert [name for name in batch.commands if f"`agac batch {name}" not in text] == []
    assert "`agac doctor" in text


def test_the_job_submits_on_merge_and_retrieves_on_a_schedule() -> None:
    when = ACTION[True]  # YAML 1.1 reads `on` so
    assert when["push"]["branches"] == ["main"]
    assert re.fullmatch(r"\d+ \* \* \* \*", when["schedule"][0]["cron"])
    by_event = {
        event: [
            parsed(words) for step in STEPS if f"== '{event}'" in step.get("if", "") for words in commands(step["run"])
        ]
        for event in ("push", "schedule")
    }
    assert by_event == {"push": ["run"], "schedule": ["batch list", "batch retrieve"]}


def test_the_jobs_never_overlap_and_their_state_comes_back() -> None:
    assert ACTION["concurrency"]["group"]
    uses = [step.get("uses", "").partition("@")[0] for step in STEPS]
    restore, save = uses.index("actions/cache/restore"), uses.index("actions/cache/save")
    runs = [place for place, step in enumerate(STEPS) if "agac " in step.get("run", "") and "if" in step]
    assert restore < min(runs)
    assert max(runs) < save
    assert STEPS[save]["if"] == "always()"
    assert STEPS[save]["with"]["path"] == STEPS[restore]["with"]["path"] == ".agac"
    assert STEPS[save]["with"]["key"].startswith(STEPS[restore]["with"]["restore-keys"])


def test_the_lines_for_cron_are_some() -> None:
    for line in BLOCKS["crontab.txt"].split("\n"):
        *times, command = line.split(maxsplit=5)
        assert len(times) == 5
        assert all(re.fullmatch(r"[\d*/]+", time) for time in times)
        (words,) = commands(command)
        assert parsed(words) in ("run", "batch retrieve")
