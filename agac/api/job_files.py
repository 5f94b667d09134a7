"""Jobs in files: one written down (`agac process --config`), and one as a workflow
(`--save-workflow`)."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from agac.api.job import Job, is_outside, set_keys
from agac.api.job_options import ProcessOptions
from agac.core.arguments import typed
from agac.core.errors import SpecError, UsageError
from agac.data.files import refuse_target, write_whole
from agac.spec import validation as check
from agac.spec.data_specs import Merge
from agac.spec.file_model import Duration, FileModel, NonEmpty, key
from agac.spec.model_errors import validate
from agac.spec.paths import is_reference, project_root
from agac.spec.rules import Budget
from agac.spec.yaml import Document, read_yaml, yaml_text


class LlmFile(FileModel):
    """Which model is asked. `base_url` and `api_key` replace these keys of the provider's entry in
    agac.yml."""

    provider: NonEmpty | None = key("The provider's name.")
    model: NonEmpty | None = key("The model's name, or with its provider as `provider/model`.")
    base_url: Annotated[NonEmpty, AfterValidator(check.base_url)] | None = key(
        "The provider's address; one that neither agac nor agac.yml knows speaks OpenAI's API."
    )
    api_key: Annotated[NonEmpty, AfterValidator(check.key_variable)] | None = key(
        "The provider's key, as `${VARIABLE}`."
    )
    temperature: float | None = key("Sampling temperature.", ge=0, le=2)
    max_tokens: int | None = key("The most tokens that a reply may have.", ge=1)


class ProcessingFile(FileModel):
    """How rows are asked."""

    mode: Literal["async", "sequential"] = key(
        "Several calls at a time, or one after the other.", default="async"
    )
    batch_size: int | None = key("The most calls in flight at a time.", ge=1, le=10_000)
    max_retries: int | None = key("How often a call that failed is made again.", ge=0, le=99)
    retry_delay: Duration | None = key(
        "The wait before the first retry: seconds, or a text as `2s`.", ge=0
    )


class JobOutputFile(FileModel):
    """What an answer has to be, and how it is written."""

    format: Literal["text", "json", "structured"] | None = key(
        "The reply's text, the value of its JSON, or an object, that fits `schema` where "
        "there is one."
    )
    merge_strategy: Merge | None = key(
        "How a result is written together with the fields of its row."
    )
    output_schema: NonEmpty | dict[str, Any] | None = key(
        "A JSON Schema: a file, or written out.", alias="schema"
    )


class JobFile(ProcessingFile):
    """`--config`: a job of `agac process`."""

    llm: LlmFile = key("Which model is asked.", default=LlmFile())
    processing: ProcessingFile = key("How rows are asked.", default=ProcessingFile())
    prompt: NonEmpty | None = key("The prompt, with the row's fields as `{field}`.")
    output: JobOutputFile = key("What an answer has to be.", default=JobOutputFile())


_PLACES = {
    "prompt": ("prompt", "prompt"),
    "output_schema": ("json_schema", "output", "schema"),
    "merge": ("merge", "output", "merge_strategy"),
    "max_tokens": ("max_tokens", "llm", "max_tokens"),
}
"""Keys of a job's workflow, with the option and the place in the file that they come from."""


@typed
def read_job(path: str | Path, options: ProcessOptions | None = None) -> ProcessOptions:
    """Reads the options of a job's file; those in `options` replace them. Raises SpecError with all
    that is wrong."""
    document = read_yaml(Path(path), str(path), None)
    file, problems = validate(JobFile, document)
    if file is None or document.problems or problems:
        raise SpecError([*document.problems, *problems])
    options = options or ProcessOptions()
    given = options.given()
    written = {
        "prompt": file.prompt,
        "merge": file.output.merge_strategy,
        **_model_options(file.llm),
        **_pace_options(file),
    }
    if not {"json_schema", "schema_model"} & given.keys():
        written |= _answer_options(file.output, Path(path), document)
    if "template" in given:  # it replaces the file's prompt
        written.pop("prompt")
    taken = {
        name: value for name, value in written.items() if value is not None and name not in given
    }
    places = {
        key: document.where(tuple(at)) for key, (name, *at) in _PLACES.items() if name in taken
    }
    return replace(options, **taken, places=places)


def _model_options(llm: LlmFile) -> dict[str, Any]:
    """Returns the options that say which model is asked."""
    model = llm.model
    if llm.provider and llm.model:
        model = f"{llm.provider}/{llm.model}"
    options: dict[str, Any] = {
        "model": model,
        "temperature": llm.temperature,
        "max_tokens": llm.max_tokens,
    }
    provider = llm.provider or (llm.model or "").partition("/")[0]
    if provider and (llm.base_url or llm.api_key):
        keys = set_keys(name=provider, base_url=llm.base_url, api_key=llm.api_key)
        options["provider"] = keys
    return options


def _pace_options(file: JobFile) -> dict[str, Any]:
    """Returns the options that say how fast and how often rows are asked. Keys at the top of the
    file replace those of `processing`."""
    pace = dict(file.processing) | {key: value for key, value in file if value is not None}
    is_sequential = "sequential" in (file.mode, file.processing.mode)
    return {
        "max_retries": pace["max_retries"],
        "retry_delay": pace["retry_delay"],
        "parallel": 1 if is_sequential else pace["batch_size"],
    }


def _answer_options(output: JobOutputFile, path: Path, document: Document) -> dict[str, Any]:
    """Returns the options that say which form answers have. Raises SpecError for a schema of
    texts."""
    schema = output.output_schema
    if schema is None:
        by_format: dict[str, dict[str, Any]] = {
            "json": {"reply": "json"},
            "structured": {"json_schema": {"type": "object"}},
        }
        return by_format.get(output.format or "", {})
    if output.format == "text":
        message = "a text has no schema; remove it, or `format: text`"
        raise SpecError([document.problem(("output", "schema"), message)])
    if isinstance(schema, dict) or is_reference(schema):
        return {"json_schema": schema}
    return {"json_schema": str(path.parent / schema)}


@typed
def save_job(
    input: str | Path,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions,
    file: str | Path,
    *,
    project: Path | str | None = None,
) -> Path:
    """Writes a workflow file that does what the job does, with its results in a folder, and returns
    its path. Raises UsageError if the file exists, unless `overwrite`, or the INPUT is outside of
    the project."""
    job = Job(project_root(project, bare=True), str(input), str(output), options, None)
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_target(path, job.taken, "workflow.yml", force=options.overwrite)
    outside = list(filter(is_outside, (job.input, *job.allowed)))
    if outside:
        raise UsageError(
            f"{outside[0]} is outside of the project, where no workflow can read it",
            remedy="Copy it.",
        )
    if job.providers:
        what = "--save-workflow: a workflow has no address or key of a provider"
        raise UsageError(
            what, remedy=f"Put `providers: {{{', '.join(job.providers)}: …}}` into agac.yml."
        )
    of_stage = set_keys(
        model=options.model,
        backend=options.backend,
        run_mode=options.run_mode,
        concurrency=options.parallel,
    )
    budget = None
    if isinstance(options.budget, Budget):
        budget = set_keys(**asdict(options.budget))
    keys = job.keys | {
        "input": job.keys["input"] | set_keys(sql=options.sql),
        "stages": [job.keys["stages"][0] | of_stage],
    }
    keys |= set_keys(budget=budget, max_errors=options.max_errors)
    write_whole(path, yaml_text(keys))
    return path
