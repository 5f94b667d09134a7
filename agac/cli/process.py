"""`agac process` and `agac resume`: rows of a file through a prompt, without a workflow file. The
summary is JSON on standard output; text for people goes to standard error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main
from agac.cli.main import (
    Globals,
    budget_option,
    in_order,
    long_running,
    max_errors_option,
    read_variables,
    row_options,
)
from agac.cli.plan import print_plans
from agac.cli.run import calls_options, read_budget
from agac.cli.run_batches import batch_lines, next_lines
from agac.cli.run_counts import call_time
from agac.cli.run_report import say_stop, summary_lines
from agac.cli.terminal import (
    confirmed,
    from_here,
    price,
    print_data,
    print_json,
    row_words,
    say,
    table,
)
from agac.core.keys import job_alias
from agac.core.reading import read_as
from agac.core.types import counted
from agac.engine.stage_summary import CallCounts, CallTimes
from agac.engine.summary import RowCounts
from agac.spec.paths import PROJECT_FILE, STORE, Unusable, is_new_place
from agac.spec.project_files import read_text

if TYPE_CHECKING:
    from agac.api.report import RunReport

PROMPTS = 5
"""Prompts that a dry run shows, unless a limit says how many."""

summary_option = click.option(
    "--final-summary/--no-final-summary",
    "--json",
    "as_json",
    default=None,
    help="Print the summary as JSON (default); with --dry-run the plan.",
)
wait_option = click.option("--wait", is_flag=True, help="Wait for batches.")
work_dir_option = click.option(
    "--work-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep the state of the job in this folder, which is empty or its own.",
)
yes_option = click.option(
    "--yes", is_flag=True, help="Answer yes to every question before calls are made."
)


def _path(*names: str, text: str) -> Callable[[Any], Any]:
    return click.option(*names, type=click.Path(), metavar="FILE", help=text)


REPLACED = {
    "--fail-on-errors": "failed rows end with exit code 3 in any case; leave it out",
    "--(no-)?keep-temp": (
        "a job leaves no temporary files, and its state is in the store; `agac gc` removes that"
    ),
    "-x|--shell": "a model runs no commands; leave it out",
    "--hf-dataset(-path)?": "upload what is written: hf upload OWNER/NAME FILE --repo-type dataset",
    "--(project|run-name|group|(no-)?trackio.*)": (
        "nothing goes to a monitor; --progress-every N prints progress, and --summary-output FILE "
        "has the figures"
    ),
}
"""Options of tools like this one, and what there is instead."""


class ProcessCommand(click.Command):
    """Says what there is instead of an option that it does not have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for names, instead in REPLACED.items():
                if re.fullmatch(names, error.option_name):
                    raise click.UsageError(f"{error.option_name}: {instead}", ctx) from None
            raise


job_options = in_order(  # of `agac process` and `agac resume`
    click.option(
        "-p", "--prompt", metavar="TEXT", help="The prompt, with the row's fields as {{field}}."
    ),
    _path(
        "--template", text="A file with the prompt. Without a prompt it is the whole row as JSON."
    ),
    click.option(
        "--syntax",
        type=click.Choice(["auto", "dollar", "mustache", "brace"]),
        default="auto",
        help="How prompts name fields: ${field}, {{field}}, {field}, or any of them (auto).",
    ),
    click.option("--instruction", metavar="TEXT", help="The system message, or a file with it."),
    click.option(
        "--agent-card",
        metavar="FILE",
        help="An AgentCard (instruction, model, parameters), or a folder.",
    ),
    click.option(
        "--agent", metavar="NAME", help="The card of that folder, or of agentcards/ in the project."
    ),
    click.option("--skills", metavar="DIR", help="A folder of skills that the model may read."),
    click.option(
        "--runtime",
        type=click.Choice(["opencode"]),
        help="Run each row as an agent of OpenCode's command line, which has to be installed.",
    ),
    click.option(
        "--var-file",
        "var_files",
        metavar="NAME=FILE",
        multiple=True,
        help="As --var, with what FILE holds.",
    ),
    _path("--vars-json", text="A JSON object with such values."),
    _path("--json-schema", text="The JSON Schema that each answer has to satisfy."),
    click.option(
        "--schema-model",
        metavar="MODULE:CLASS",
        help="The same as a Pydantic class of the project.",
    ),
    click.option(
        "--reply", type=click.Choice(["text", "json"]), help="What replies without a schema are."
    ),
    click.option(
        "--parallel",
        "--concurrency",
        "parallel",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Maximum number of concurrent calls; 1 runs them one at a time.",
    ),
    click.option(
        "--read",
        metavar="KEY=VALUE",
        multiple=True,
        help="A key of a workflow's input, which says how INPUT "
        "is read: format=csv, encoding=cp1252, sheet=2, 'delimiter=;'.",
    ),
    click.option(
        "--id-field", metavar="FIELD", help="The field with each row's id; else rows are numbered."
    ),
    click.option(
        "--include-input/--no-include-input",
        default=None,
        help="Put rows' fields beside results (jsonl).",
    ),
    click.option(
        "--merge",
        type=click.Choice(["replace", "extend", "update", "append"]),
        help="How a result is written together with the fields of its row.",
    ),
    click.option(
        "--format",
        type=click.Choice(["jsonl", "json", "csv", "tsv", "txt", "parquet"]),
        help="The format of OUTPUT.",
    ),
    click.option(
        "--to",
        metavar="TABLE",
        help="Write the rows into a table too: sqlite://FILE?table=NAME, or "
        "postgres://USER:${PGPASSWORD}@HOST/DATABASE?table=NAME.",
    ),
    click.option(
        "--sources", is_flag=True, help="Put the pages of providers' searches beside results."
    ),
    click.option(
        "--csv-safe", is_flag=True, help="Keep spreadsheets from running cells as formulas."
    ),
    click.option(
        "--max-retries",
        "--retries",
        "max_retries",
        type=click.IntRange(0, 99),
        metavar="N",
        help="Retry a failed call up to N times.",
    ),
    click.option(
        "--retry-delay",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="The wait before the first retry.",
    ),
    click.option(
        "--row-timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="The most a row may take, with all its retries.",
    ),
    max_errors_option,
    budget_option,
    _path("--error-output", text="Write the failed rows here, with their input."),
    _path("--telemetry-output", text="Write the calls of each row here."),
    _path("--summary-output", text="Write the summary here too."),
    work_dir_option,
    click.option(
        "--fresh", is_flag=True, help="Ask about every row again; do not reuse earlier results."
    ),
    click.option(
        "-m",
        "--model",
        "models",
        metavar="MODEL",
        multiple=True,
        help="The model: provider/model?key=value. Several are compared, with an OUTPUT each.",
    ),
    click.option(
        "--quote",
        is_flag=True,
        help="Run 20 rows, then show what the rest costs and ask whether to go on.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Show the prompts of the first rows and the cost, and make no calls.",
    ),
    click.option(
        "--progress-every", type=click.IntRange(1), metavar="N", help="Print progress every N rows."
    ),
    click.option(
        "--progress/--no-progress", default=True, help="Show progress (default), or do not."
    ),
    click.option(
        "--stream",
        is_flag=True,
        help="Make one call at a time, and show each reply as it is written.",
    ),
    main.traces_option,
    wait_option,
    summary_option,
    yes_option,
    calls_options,
    row_options,
)


@click.command(
    cls=ProcessCommand,
    help="Ask a model about each row of INPUT, and write the results into OUTPUT (- for stdout). "
    "Run it again to resume.",
)
@click.argument("places", metavar="[INPUT] [OUTPUT]", nargs=-1)
@in_order(
    click.option(
        "-o",
        "--output",
        type=click.Path(),
        metavar="OUTPUT",
        help="The file for the results; its suffix tells the format.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace an OUTPUT that this job did not write."
    ),
    click.option(
        "--resume/--no-resume",
        default=None,
        help=(
            "Adopt the results of an OUTPUT that this job did not write; or refuse one that is "
            "there."
        ),
    ),
    _path("--config", text="Read the job from a YAML file; options win over its keys."),
    _path("--save-workflow", text="Write the same work as a workflow file."),
)
@job_options
@click.pass_obj
def process(
    settings: Globals, /, places: tuple[str, ...], dry_run: bool, as_json: bool | None, **given: Any
) -> int:
    source, output = _places(places, given.pop("input"), given.pop("output"))
    config = given.pop("config")
    workflow = given.pop("save_workflow")
    options, models, every = _options(given)
    if config is not None:
        options = api.read_job(config, options)
    if workflow is not None and len(models) > 1:
        raise click.UsageError("--save-workflow: a workflow has one model; leave out the others")
    if workflow is not None:
        path = api.save_job(source, output, options, workflow, project=settings.project_dir)
        say(f"The workflow is in {from_here(path)}")
    if dry_run:
        return _print_job_plans(settings, source, output, options, models, as_json=bool(as_json))
    if options.work_dir is None and not settings.quiet and is_new_place(settings.project_dir):
        say(
            f"No {PROJECT_FILE} here: the state of this folder goes into {STORE.parent}. "
            "`agac init` keeps it."
        )
    summary = as_json is not False
    what = (source, output, options)
    return _run(api.process, settings, *what, summary=summary, every=every, models=models)


def _print_job_plans(
    settings: Globals,
    source: str,
    output: str,
    options: api.ProcessOptions,
    models: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Prints the plan of a job, or of the job of each of several models."""
    from agac.api.compare import jobs_of  # loads the API

    jobs = [(output, options)]
    if len(models) > 1:
        jobs = jobs_of(output, options, models)
    plans = []
    for job_output, job_options in jobs:
        shown = options.limit or PROMPTS
        plan = api.process_plan(
            source, job_output, job_options, show=shown, project=settings.project_dir
        )
        plans.append(plan if as_json else replace(plan, workflow=job_output))
    return print_plans(plans, (), as_json=as_json)


@click.command(
    help="Resume a job of `agac process` (JOB: job_3, or the number of its run) with the options "
    "it had, but for those that are given."
)
@click.argument("job", metavar="JOB")
@job_options
@click.pass_obj
def resume(
    settings: Globals, /, job: str, as_json: bool | None, dry_run: bool, **given: Any
) -> int:
    folder = given.pop("work_dir")
    source = given.pop("input")
    if folder is not None:
        settings = replace(settings, project_dir=Path(folder))
    options, models, every = _options(given)
    if len(models) > 1:
        raise click.UsageError("--model: a job has one model; compare several with `agac process`")
    if dry_run:
        from agac.api.process import resume_plan  # loads the API

        shown = options.limit or PROMPTS
        plan = resume_plan(job, options, input=source, show=shown, project=settings.project_dir)
        run = plan.compared_with if plan.continues is None else plan.continues
        if run is not None and not as_json:
            plan = replace(plan, workflow=job_alias(run))
        return print_plans([plan], (), as_json=bool(as_json))
    work = partial(api.resume, input=source)
    return _run(work, settings, job, options, summary=as_json is not False, every=every)


def _options(given: dict[str, Any]) -> tuple[api.ProcessOptions, tuple[str, ...], int | None]:
    """Makes the options of a job, its models, and after how many rows progress is printed (0:
    never)."""
    given["vars"] = _variables(given.pop("vars_json"), given.pop("var_files"), given["vars"])
    given["budget"] = read_budget(given["budget"])
    given["read"] = read_variables(given["read"], "--read")
    every = given.pop("progress_every")
    if not given.pop("progress"):
        every = 0
    models = given.pop("models")
    given["model"] = models[0] if len(models) == 1 else None
    keys = {name: value for name, value in given.items() if value is not None}
    return api.ProcessOptions(**keys), models, every


def _places(places: tuple[str, ...], source: str | None, output: str | None) -> tuple[str, str]:
    """Finds INPUT and OUTPUT among the arguments and the options."""
    left = list(places)
    if source is None and left:
        source = left.pop(0)
    if output is None and left:
        output = left.pop(0)
    if left:
        raise click.UsageError(
            f"unexpected argument: {left[0]}; there are one INPUT and one OUTPUT"
        )
    if source is None or output is None:
        missing = "INPUT" if source is None else "OUTPUT"
        raise click.UsageError(
            f"{missing} is missing. For example: `agac process rows.csv results.jsonl --prompt …`"
        )
    return source, output


def _variables(file: str | None, files: tuple[str, ...], pairs: tuple[str, ...]) -> dict[str, str]:
    """Reads the variables of all three options; `--var` wins over `--var-file`, and that over
    `--vars-json`."""
    variables: dict[str, str] = {}
    try:
        if file is not None:
            variables = _variables_of_json(file)
        for name, path in read_variables(files, "--var-file").items():
            variables[name] = read_text(Path(path), path, None).rstrip("\n")
    except Unusable as error:
        raise click.UsageError(str(error)) from error
    return variables | read_variables(pairs)


def _variables_of_json(file: str) -> dict[str, str]:
    """Reads the object of texts in a file."""
    text = read_text(Path(file), file, None)
    try:
        variables: Any = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--vars-json {file}: not valid JSON: {error}") from error
    is_object = isinstance(variables, dict)
    if not is_object or not all(isinstance(value, str) for value in variables.values()):
        raise click.UsageError(
            f'--vars-json {file}: write an object of texts, as {{"name": "value"}}'
        )
    return dict(variables)


def _run(
    work: Callable[..., Any],
    settings: Globals,
    *arguments: Any,
    summary: bool,
    every: int | None = None,
    models: Any = (),
) -> int:
    """Runs a job, and says how it ended.

    `every`: how many rows a line of progress is for; 0 shows warnings alone. Several `models`
    are compared.
    """
    where = _folder_option(settings, arguments)
    are_compared = len(models) > 1

    def began(alias: str) -> None:
        if not settings.quiet:
            say(f"{alias}: resume with `agac resume {alias}{where}`, or with the same command")

    def ended(report: Any) -> None:
        if isinstance(report, api.AgacError):
            main.say_known(report, click.get_current_context())
            return
        command = f"agac resume {job_alias(report.record.run)}{where}"
        say_stop(report, command)
        if not settings.quiet:
            say("\n".join(_ended_lines(report, command)))

    if are_compared:
        work = partial(api.compare, models=models, ended=ended)
    report = long_running(work)(
        *arguments,
        project=settings.project_dir,
        progress=_progress(settings, every),
        confirm=confirmed,
        handle_signals=True,
        began=began,
        tell=partial(print_data, is_json=True, flush=True),
    )
    if not are_compared:
        ended(report)
    elif not settings.quiet:
        say("\n".join(_model_lines(report.models)))
    if summary and _output_of(report) != "-":  # there are the results
        print_json(report.summary)
    return int(report.exit_code)


def _folder_option(settings: Globals, arguments: tuple[Any, ...]) -> str:
    """` --project-dir FOLDER`: the option that makes a command find the job; empty without one."""
    folder: Path | str | None = settings.project_dir
    for argument in arguments:
        if isinstance(argument, api.ProcessOptions):
            folder = argument.work_dir or folder
    return f" --project-dir {shlex.quote(str(folder))}" if folder else ""


def _progress(settings: Globals, every: int | None) -> Any:
    """Chooses how progress is shown: not at all, on a bar, or a line for `every` so many rows."""
    if settings.quiet or every is None:
        return not settings.quiet
    from agac.api.progress import plainly, warnings_only

    return partial(plainly, every=every) if every else warnings_only


def _output_of(report: Any) -> Any:
    """Finds where the results of a job, or of a comparison of models, are written."""
    if not isinstance(report, api.RunReport):
        return report.output
    if report.job is None:
        return None
    return report.job.request.output


def _model_lines(models: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a table of the models that were compared, then how far each agrees by field."""
    header = ["model", "rows", "agrees", "cost", "tokens in", "out", "p50", "p95"]
    yield from ("", table(header, [_model_cells(model) for model in models]))
    for model in models:
        fields = (model.get("agreement") or {}).get("fields")
        if fields:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in fields.items())
            yield f"{model['model']} agrees: {shares}"


def _model_cells(model: dict[str, Any]) -> list[object]:
    """Makes the line of a model in the table of a comparison."""
    if "error" in model:
        return [model["model"], "error", *[""] * 6]
    calls = read_as(CallCounts, model["calls"])
    times = read_as(CallTimes, model["timing_ms"]).duration
    share = (model["agreement"] or {}).get("share")
    return [
        model["model"],
        row_words(RowCounts(**model["rows"])),
        "" if share is None else f"{share:.0%}",
        price(calls.cost.usd, simulated=calls.cost.is_simulated),
        calls.tokens.input,
        calls.tokens.output,
        _time_cell(times.p50),
        _time_cell(times.p95),
    ]


def _time_cell(milliseconds: float | None) -> str:
    return "" if milliseconds is None else call_time(milliseconds)


def _ended_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields how a job ended, and what to do next."""
    lines = summary_lines(report, command, None)
    # which is for runs of workflow files
    yield from (line for line in lines if "agac retry " not in line)
    adopted = report.job.rows.adopted if report.job is not None else 0
    if adopted:
        yield f"Adopted: the answers of {counted(adopted, 'row')}, out of the file as it was"
    if report.files:
        yield f"Results: {', '.join(map(from_here, report.files))}"
    if report.copies:
        yield f"The file as it was is kept as {', '.join(map(from_here, report.copies))}"
    yield from batch_lines(report.invocation_record)
    yield from next_lines(
        report.record, report.invocation_record, command, stopped=report.stopped is not None
    )
