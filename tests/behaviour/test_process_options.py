"""The options of `agac process`: their names, which of them are refused, how they combine, and what they may name."""

from __future__ import annotations

import click
import pytest
from support.project import ProjectFolder

from agac.cli.main import cli
from agac.cli.process import process as command

# The options that tools like this one have, with a value each.
OPTIONS = (
    "-i a.csv -o b.jsonl", "--input a.csv --output b.jsonl", "-p x", "--prompt x", "--template x", "--instruction x",
    "-m a/b", "--model a/b", "--json-schema x", "--schema-model m:C", "--var a=b", "--var-file a=b", "--vars-json x",
    "--limit 1 --offset 0 --sample 1 --seed 0", "--sql x", "--include-input", "--no-include-input", "--id-field x",
    "--error-output x --telemetry-output x --summary-output x", "--final-summary", "--no-final-summary", "--resume",
    "--no-resume", "--overwrite", "--max-errors 0", "--parallel 2", "--keep-temp", "--no-keep-temp",
    "--progress-every 2", "--progress", "--no-progress", "--retries 0", "--max-retries 0", "--row-timeout 0.5",
    "--max-cost 3", "--budget 3", "--dry-run", "--fail-on-errors",
)  # fmt: skip
PARENT = click.Context(cli, **cli.context_settings)
REFUSED = {
    "a model runs no commands": ("--shell", "-x"),
    "--telemetry-output FILE has the calls": ("--export-traces x", "--export-traces=x"),
    "hf upload OWNER/NAME FILE": ("--hf-dataset x", "--hf-dataset-path x"),
    "--summary-output FILE has the figures": (
        "--project x", "--trackio-project x", "--run-name x", "--trackio-name x", "--group x", "--trackio-group x",
        "--trackio-space-id x", "--trackio-server-url x", "--trackio-every 2", "--trackio-config-json x",
        "--no-trackio",
    ),
    "No such option": ("--sell",),
}  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_of_such_tools_is_known_by_its_name(words: str) -> None:
    command.make_context("process", words.split(), parent=PARENT)


@pytest.mark.parametrize(("said", "words"), [(said, one) for said, some in REFUSED.items() for one in some])
def test_or_it_is_refused_with_what_there_is_instead(said: str, words: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        command.make_context("process", words.split(), parent=PARENT)
    assert said in refused.value.format_message()


def test_options_that_bound_a_job_do(project: ProjectFolder) -> None:
    project.numbered(2)
    words = ("process", "data/rows.csv", "o.jsonl", "--prompt", "x {id}", "--max-cost", "5", "--no-progress")
    ran = project.agac(*words, code=2)
    assert "or, to the model, `?max_tokens=1000`" in ran.err
    ran = project.agac(*words, "--model", "simulator/small?max_tokens=1000", "--row-timeout", "0.000001", code=3)
    assert (ran.json["failed_rows"], ran.json["errors"][0]["type"]) == (2, "Timeout")
