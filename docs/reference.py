# ruff: noqa: INP001
"""The reference, made from the program: commands, keys, tables, providers, kinds of faults."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import click
import yaml
from pages import ROOT
from pydantic import BaseModel
from support import outcomes

from agac import api
from agac.api.job_files import JobFile, JobOutputFile, LlmFile, ProcessingFile
from agac.cli.main import cli
from agac.core.types import Params
from agac.providers.known_providers import SHIPPED
from agac.providers.model_keys import FIELDS, NO_EFFECT, NOT_HERE, READERS, SPELLINGS
from agac.providers.model_string import ALIASES
from agac.providers.table import ELSEWHERE
from agac.simulator import fault_files, faults
from agac.simulator.settings import setting_flags
from agac.spec.card_models import CARD_MODELS, CardFile, FunctionToolFile, McpConnectFile, RequestParamsFile
from agac.spec.data_models import InputFile, OutputFile
from agac.spec.default_models import BatchFile, DefaultsFile, RetriesFile, TimeoutFile
from agac.spec.file_model import FileModel
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.project_models import (
    BatchApiFile,
    CiFile,
    ExecutorFile,
    LimitsFile,
    LintFile,
    McpServerFile,
    PathsFile,
    PriceFile,
    ProjectFile,
    ProviderSpec,
    RemoteContentFile,
)
from agac.spec.rule_models import BudgetFile, ConfirmFile, NotifyFile, RowBudgetFile, RunRulesFile, TelemetryFile
from agac.spec.stage_models import (
    CheckFile,
    EscalateFile,
    LabelFile,
    MessageFile,
    RedoFile,
    ReduceFile,
    ReviewFile,
    RuntimeFile,
    ToolFile,
    VisibleFile,
    VoteFile,
)
from agac.spec.test_files import AskedCallFile, ExpectFile, ReplyFile, WorkflowTestFile
from agac.store.db import migrations, split_script
from agac.store.query import views

WIDTH = 100
FILES = {"yml": "yaml", "md": "markdown", "json": "json", "csv": "csv", "sh": "sh", "sbatch": "sh"}


def shown_file(path: str, name: str) -> str:
    """A file of the repository, as a block that calls it `name`."""
    text = (ROOT / path).read_text("utf-8").rstrip("\n")
    language = FILES[path.rpartition(".")[2]]
    head = f"# {name}\n" if language == "yaml" else ""
    return f"```{language}\n{head}{text}\n```\n"


def commands() -> str:
    """Every command with its help, as the program prints it."""
    return "".join(f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """`agac run` and its help, for every command and subcommand."""
    yield from _helps(cli, "agac", None)


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent, name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _helps(found, inner, context)


def keys(model: type[BaseModel]) -> str:
    """The keys of one mapping of a file, as a table."""
    schema = model.model_json_schema()
    needed = schema.get("required", [])
    rows = []
    for name, body in schema["properties"].items():
        default = "required" if name in needed else _default(body)
        rows.append((f"`{name}`", kind(body, schema), default, meaning(body, schema)))
    return table(("key", "value", "default", "meaning"), rows)


def meaning(body: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a key is for: its own description, or that of the mapping that stands there."""
    if "description" in body:
        return str(body["description"])
    name = body.get("$ref", "").rpartition("/")[2]
    return str(schema["$defs"][name]["description"])


def kind(body: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a key takes, in words."""
    if "anyOf" in body:
        options = [kind(option, schema) for option in body["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(options))
    if "allOf" in body:
        return kind(body["allOf"][0], schema)
    if "$ref" in body:
        headings = {model.__name__: heading for model, heading in SECTIONS.items()}
        return f"[mapping](#{headings[body['$ref'].rpartition('/')[2]]})"
    if "enum" in body or "const" in body:
        return ", ".join(f"`{value}`" for value in body.get("enum", [body.get("const")]))
    if isinstance(body.get("type"), list):
        return " or ".join(TYPES[name] for name in body["type"])
    if body.get("type") == "array":
        return f"list of {kind(body['items'], schema)}"
    if body.get("type") == "object" and isinstance(body.get("additionalProperties"), dict):
        return f"mapping of names to {kind(body['additionalProperties'], schema)}"
    if body.get("type") == "object":
        return "mapping"
    return TYPES[body.get("type", "any")] + bounds(body)


TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "object": "mapping",
    "array": "list",
    "any": "anything",
}


def bounds(body: dict[str, Any]) -> str:
    """` from 1 to 10000`, where a number is bounded."""
    low, above, high = body.get("minimum"), body.get("exclusiveMinimum"), body.get("maximum")
    text = f" from {low:,}" if low is not None else f" above {above:g}" if above is not None else ""
    return text + (f" to {high:,}" if high is not None else "")


def _default(body: dict[str, Any]) -> str:
    value = body.get("default")
    if value is None or value == {} or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


SECTIONS: dict[type[FileModel], str] = {
    ProjectFile: "agacyml",
    PathsFile: "paths",
    RemoteContentFile: "remote",
    LintFile: "lint",
    CiFile: "ci",
    ExecutorFile: "executor",
    ProviderSpec: "a-provider",
    BatchApiFile: "a-batch-api",
    LimitsFile: "limits",
    PriceFile: "prices",
    WorkflowFile: "a-workflow",
    InputFile: "input",
    DefaultsFile: "defaults",
    StageFile: "a-stage",
    VisibleFile: "visible",
    CheckFile: "checks",
    VoteFile: "vote",
    EscalateFile: "escalate",
    LabelFile: "labels",
    ReviewFile: "review",
    RuntimeFile: "runtime",
    RedoFile: "redo",
    MessageFile: "messages",
    ReduceFile: "reduce",
    TimeoutFile: "timeout",
    RetriesFile: "retries",
    BatchFile: "batch",
    OutputFile: "output",
    RunRulesFile: "a-workflow",
    BudgetFile: "budget",
    RowBudgetFile: "row_budget",
    ToolFile: "a-tool",
    McpServerFile: "an-mcp-server",
    ConfirmFile: "confirm_above",
    TelemetryFile: "telemetry",
    NotifyFile: "notify",
    WorkflowTestFile: "a-test",
    ExpectFile: "expect",
    ReplyFile: "replies",
    AskedCallFile: "calls",
    CardFile: "an-agentcard",
    **{model: f"a-card-of-type-{kind}" for kind, model in CARD_MODELS.items() if kind != "agent"},
    RequestParamsFile: "request_params",
    FunctionToolFile: "function_tools",
    McpConnectFile: "mcp_connect",
    JobFile: "a-job",
    LlmFile: "llm",
    ProcessingFile: "processing",
    JobOutputFile: "output-of-a-job",
}
"""Every kind of mapping in files, and the heading under which workflow.md shows it."""


def store() -> str:
    """Every table with its columns, as the migrations leave it."""
    connection = sqlite3.connect(":memory:")
    meanings: dict[tuple[str, str], str] = {}
    for _, script in migrations():
        meanings |= dict(comments(script))
        for statement in split_script(script):
            connection.execute(statement)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")]
    text = ""
    for name in names:
        columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
        rows = [
            (f"`{column}`", affinity.lower() or "any", "" if needed or key else "yes", meanings.get((name, column), ""))
            for _, column, affinity, needed, _, key in columns
        ]
        text += f"\n### {name}\n\n" + table(("column", "type", "null", "meaning"), rows)
    connection.close()
    return text


def view_parts() -> str:
    """Every view with its columns, as the migrations describe it."""
    return "".join(
        f"\n### {view.name}\n\n{view.meaning}\n\n"
        + table(("column", "meaning"), [(f"`{name}`", text) for name, text in view.columns.items()])
        for view in views()
    )


def comments(script: str) -> Iterator[tuple[tuple[str, str], str]]:
    """What a migration says about its columns: (table, column) and the comment beside it."""
    for created in re.finditer(r"CREATE TABLE (\w+) \((.*?)\n\)", script, re.DOTALL):
        for line in re.finditer(r"^ +(\w+) .*?-- (.*)$", created[2], re.MULTILINE):
            yield (created[1], line[1]), line[2]
    for line in re.finditer(r"ALTER TABLE (\w+) ADD COLUMN (\w+).*?-- (.*)$", script, re.MULTILINE):
        yield (line[1], line[2]), line[3]


def providers() -> str:
    """The providers that agac ships."""
    rows = [
        (
            f"`{row.name}`",
            row.base_url or "started by agac",
            f"`{row.key_variable}`" if row.key_variable else "none",
            {"json_schema": "by schema", "json_object": "JSON mode", "none": "told"}[row.structured],
            "library" if row.price_id else "`prices`" if row.prices else "none",
            f"`{row.batch.api}`" if row.batch else "none",
        )
        for row in SHIPPED.values()
    ]
    return table(("provider", "address", "key", "structured answers", "prices", "batches"), rows)


def model_keys() -> str:
    """What may stand after `?` in a model string."""
    rows = []
    for name, reader in READERS.items():
        assert name in FIELDS or name in Params.__dataclass_fields__
        rows.append((f"`{name}`", reader.__doc__ or "", spellings(name)))
    return table(("key", "value", "also written"), rows)


def spellings(name: str) -> str:
    """Other ways to write a key of a model string."""
    return ", ".join(f"`{spelling}`" for spelling, known in SPELLINGS.items() if known == name)


def other_keys() -> str:
    """Keys of other programs' model strings, and what becomes of them."""
    rows = [(f"`{name}`", f"only {reader.__doc__}", spellings(name)) for name, reader in NOT_HERE.items()]
    rows += [(f"`{name}`", f"ignored with a warning: {why}", spellings(name)) for name, why in NO_EFFECT.items()]
    return table(("key", "value", "also written"), rows)


def short_names() -> str:
    """The short names of models."""
    rows = [(f"`{name}`", f"`{target}`") for name, target in ALIASES.items()]
    return table(("name", "means"), rows)


def providers_elsewhere() -> str:
    """Providers that cannot be asked, and what to write instead."""
    rows = [(f"`{name}`", why.replace("{model}", "…")) for name, why in ELSEWHERE.items()]
    return table(("provider", "why, and what to write"), rows)


def simulator_settings() -> str:
    """What a simulator can be told: the flags of `agac simulate`, except the port."""
    rows = [
        (f"`--{flag.name}`", flag.help, f"`{default}`" if default not in (None, True) else "")
        for _, flag, default in setting_flags()
        if flag.name != "port"
    ]
    return table(("flag", "what it does", "default"), rows)


def fault_kinds() -> str:
    """What a simulator can do wrong, and the keys that say when."""
    return _fault_table(in_batches=False, keys=fault_files.KEYS)


def batch_fault_kinds() -> str:
    """What a simulator can do wrong with batches, and how the requests or batches are chosen."""
    return _fault_table(in_batches=True, keys=fault_files.BATCH_KEYS)


def _fault_table(*, in_batches: bool, keys: Mapping[str, fault_files.ValueKind]) -> str:
    """The kinds of the table of faults, the phases that they have, and the values of their keys."""
    found = {kind: spec for kind, spec in faults.FAULTS.items() if (spec.phase in faults.SINGLE_PHASES) != in_batches}
    rows = [
        (f"`{kind}`", spec.phase, spec.meaning, ", ".join(f"`{key}`" for key in spec.keys))
        for kind, spec in found.items()
    ]
    used = dict.fromkeys(spec.phase for spec in found.values())
    phases = [(name, meaning) for name, (meaning, _) in faults.PHASES.items() if name in used]
    values = [(f"`{key}`", words) for key, (_, words) in keys.items()]
    parts = (
        (("kind", "phase", "what happens", "keys of its own"), rows),
        (("phase", "what the fault is about"), phases),
        (("key", "value"), values),
    )
    return "\n".join(table(heads, lines) for heads, lines in parts)


MISTAKES = ROOT / "tests/behaviour/error_texts"
MADE_IN = {
    "files": "in the files of the project",
    "rows": "in the rows",
    "models": "with models and providers",
    "limits": "with limits",
    "machine": "on the machine",
    "command-line": "on the command line",
}
"""The folders of the pinned texts, and where such mistakes are made."""


def mistakes() -> str:
    """What agac says to the commonest mistakes, as a test pins it."""
    text = ""
    for folder, where in MADE_IN.items():
        text += f"\n### Mistakes {where}\n"
        for path in sorted((MISTAKES / folder).glob("*.txt")):
            title, _, said = path.read_text("utf-8").partition("\n\n")
            shown = title.replace("{{review}} or {product}", "`{{review}}` or `{product}`")
            text += f"\n{shown}:\n\n```text\n{said}```\n"
    return text


def failure_modes() -> str:
    """What goes wrong in engines of this kind, with the tests against it. Raises ValueError where one is not there."""
    lines = []
    for subject, modes in yaml.safe_load((ROOT / "docs/failure-modes.yml").read_text("utf-8")).items():
        lines += [f"\n## {subject}\n"]
        for name, mode in modes.items():
            if "absent" in mode:
                lines.append(f"- **{name}** {mode['trouble']}\n  *Not here:* {mode['absent']}.")
                continue
            tests = ", ".join(f"`{test}`" for test in map(_found_test, mode["tests"]))
            lines.append(f"- **{name}** {mode['trouble']}\n  *agac:* {mode['does']}\n  *Tests:* {tests}")
    return "\n".join(lines) + "\n"


def _found_test(test: str) -> str:
    """A test's path and name, if it is there."""
    path, _, name = test.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file() or not re.search(rf"def {name}\(|^{name} = ", file.read_text("utf-8"), re.MULTILINE):
        raise ValueError(f"docs/failure-modes.yml names a test that is not there: tests/{test}")
    return f"tests/{test}"


def python_names(kind: str) -> str:
    """The public names of a kind, each where mkdocstrings puts its signature and its docstring into the site."""
    homes = {name: home for name, home in api.homes().items() if python_kind(getattr(api, name)) == kind}
    homes = {name: home for name, home in homes.items() if name[0] != "a" or name[1:] not in homes}  # async twins
    written = {name: f"a{name}" if hasattr(import_module(home), f"a{name}") else name for name, home in homes.items()}
    return "\n\n".join(f"::: {homes[name]}.{written[name]}" for name in sorted(homes)) + "\n"


def python_kind(public: Any) -> str:
    """Whether a public name is a function, an error, or another class or type."""
    if not isinstance(public, type):
        return "functions" if callable(public) else "classes"
    return "errors" if issubclass(public, Exception) else "classes"


PARTS: dict[str, Callable[[], str]] = {
    **{f"python {kind}": partial(python_names, kind) for kind in ("functions", "classes", "errors")},
    "commands": commands,
    "store": store,
    "views": view_parts,
    "providers": providers,
    "model keys": model_keys,
    "other model keys": other_keys,
    "short names": short_names,
    "providers elsewhere": providers_elsewhere,
    "simulator settings": simulator_settings,
    "faults": fault_kinds,
    "batch faults": batch_fault_kinds,
    "mistakes": mistakes,
    "failure modes": failure_modes,
    "outcomes of stages": outcomes.stage_table,
    "outcomes of made rows": outcomes.maker_table,
    "outcomes of outputs": outcomes.output_table,
    "outcomes of rows": outcomes.listed_table,
    **{f"keys {model.__name__}": partial(keys, model) for model in SECTIONS},
}
"""Every generated part by its name."""
