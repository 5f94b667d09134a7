"""Checks of a workflow against this machine and its providers: variables, libraries, schemas,
budgets. Each returns all its Problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agac.core.errors import Problem, UsageError, Where, lack_of
from agac.core.types import Schema
from agac.plan.plan import Models
from agac.plan.resolved_models import with_places
from agac.plan.stage import PlannedModel
from agac.providers.prices import dearest_price
from agac.providers.structured import unenforced
from agac.providers.table import DIALECTS
from agac.spec.mcp_lock import connection
from agac.spec.notify import NotifyTarget
from agac.spec.rules import Budget, RowBudget
from agac.spec.workflow import Workflow, WrittenStage, family
from agac.spec.yaml import expand


def missing_variables(models: Models, workflow: Workflow) -> list[Problem]:
    """Returns the environment variables that the providers in use need and that are not set: only
    a run needs them."""
    problems = [
        _missing_variable(where, model.provider.name, variable)
        for stage in workflow.calling
        for where, model in with_places(stage, models[stage.name])
        for variable in model.provider.missing_variables
    ]
    return list(dict.fromkeys(problems))


def _missing_variable(where: Where, provider: str, variable: str) -> Problem:
    message = (
        f"provider {provider!r} needs the variable {variable}; export it, or write {variable}=… "
        "into the project's .env file"
    )
    return Problem(where, message)


def missing_parts(workflow: Workflow, root: Path, env: Mapping[str, str]) -> list[Problem]:
    """Returns keys that need a library which is not installed or too old.

    Warnings are variables without which a notification of the run is not sent, and programs and
    MCP servers that lack something, such as a variable: a run that may call them ends before its
    first call."""
    problems = list(_missing_libraries(workflow))
    for target in workflow.rules.notify:
        problems += _missing_for_notify(target, env)
    for stage in workflow.asking:
        for agent in family(stage):
            problems += _missing_program(agent, root, env)
            problems += _missing_for_servers(agent, root, env)
    return problems


def _missing_libraries(workflow: Workflow) -> Iterator[Problem]:
    libraries = [
        (stage.at("json_repair"), "json_repair", "json-repair")
        for stage in workflow.asking
        if stage.settings.json_repair
    ]
    if "parquet" in workflow.output.formats:
        libraries.append((workflow.output.where, "parquet", "duckdb"))
    libraries += [
        (target.where, "notify: apprise", "apprise")
        for target in workflow.rules.notify
        if target.apprise
    ]
    for where, subject, library in libraries:
        lack = lack_of(subject, library)
        if lack:
            yield Problem(where, lack)


def _missing_for_notify(target: NotifyTarget, env: Mapping[str, str]) -> Iterator[Problem]:
    """Yields the variables without which a notification is not sent."""
    texts = filter(None, (target.webhook, target.secret, target.apprise, target.heartbeat))
    for name in dict.fromkeys(name for text in texts for name in expand(text, env)[1]):
        message = (
            f"notify needs the variable {name}; export it, or write {name}=… into the "
            "project's .env file"
        )
        yield Problem(target.where, message, "warning")


def _missing_program(stage: WrittenStage, root: Path, env: Mapping[str, str]) -> Iterator[Problem]:
    """Yields the program that runs the stage's tasks as agents, if it is not there."""
    program = stage.settings.tooling.program
    if program is None:
        return
    from agac.providers.opencode import find_program  # and what runs programs, where there is one

    try:
        find_program(program.command, root, env)
    except UsageError as error:
        yield _warning(stage.at("runtime"), error)


def _missing_for_servers(
    stage: WrittenStage, root: Path, env: Mapping[str, str]
) -> Iterator[Problem]:
    """Yields the MCP servers that the stage's model may call and that cannot be connected to."""
    if stage.agent_spec is None or stage.agent_spec.mode != "live":
        return
    for server in stage.settings.tooling.servers:
        try:
            connection(server, root, env)
        except UsageError as error:
            prefix = f"{server.name}:"
            places = (tool.where for tool in stage.named_tools if tool.source.startswith(prefix))
            yield _warning(next(places, stage.at("")), error)


def _warning(where: Where, error: UsageError) -> Problem:
    return Problem(where, f"{error.message}. {error.remedy}", "warning")


def outside_strict(
    workflow: Workflow, models: Models, schemas: Mapping[str, Schema | None]
) -> list[Problem]:
    """Returns warnings of schemas, by their stages' names, that a provider does not enforce
    although it enforces others. The simulator enforces any."""
    problems: list[Problem] = []
    for stage in workflow.asking:
        schema = schemas.get(stage.name)
        if schema is None:
            continue
        for model in models.get(stage.name, ()):  # none if its string is wrong
            problems += _unenforced(stage, model, schema)
    return list(dict.fromkeys(problems))


def _unenforced(stage: WrittenStage, model: PlannedModel, schema: Schema) -> Iterator[Problem]:
    provider = model.provider
    if provider.simulated:
        return
    why = unenforced(schema, provider, DIALECTS[provider.dialect].shaping)
    if why is not None:
        message = (
            f"{provider.name} is not held to this schema: {why}; answers are checked all the "
            "same, and more of them may fail"
        )
        yield Problem(stage.at("output_schema"), message, "warning")


def check_budgets(workflow: Workflow, models: Models) -> list[Problem]:
    """Finds models whose calls cannot be bounded by the budgets that apply to them. Prices are
    looked up for dollars only."""
    problems: list[Problem] = []
    rules = workflow.rules
    for stage in workflow.calling:
        budgets = [
            budget
            for budget in (rules.project, rules.workflow, rules.row, stage.settings.budget)
            if budget is not None
        ]
        if budgets and stage.name in models:
            problems += _runtime_budget_problems(stage, rules.row)
            problems += _budget_problems(stage, models[stage.name], budgets)
    return list(dict.fromkeys(problems))


def _runtime_budget_problems(
    stage: WrittenStage, row_budget: RowBudget | None
) -> Iterator[Problem]:
    """Yields a budget of turns or tool calls for a program that does not tell them."""
    if not stage.runtime or row_budget is None:
        return
    if row_budget.turns is not None or row_budget.tool_calls is not None:
        message = (
            "row_budget counts no turns and tool_calls within sessions of OpenCode; "
            "bound them by `max_turns`"
        )
        yield Problem(stage.at("runtime"), message)


def _budget_problems(
    stage: WrittenStage, models: Sequence[PlannedModel], budgets: Sequence[Budget]
) -> Iterator[Problem]:
    """Yields what is lacking to bound calls by budgets in dollars or tokens."""
    in_dollars = any(budget.usd is not None for budget in budgets)
    in_tokens = any(budget.tokens is not None for budget in budgets)
    if not in_dollars and not in_tokens:
        return
    for where, model in with_places(stage, models):
        if model.params.max_tokens is None:
            message = (
                f"a budget in usd or tokens holds for stage {stage.name!r}, so each reply of "
                f"{model.ref} needs a bound; add `max_tokens: 1000` or, to the model, "
                "`?max_tokens=1000` (what a reply may need)"
            )
            yield Problem(stage.at(""), message)
        if model.server_tools:
            message = (
                f"what {' and '.join(model.server_tools)} of {model.ref} finds and costs is not "
                "known before a call: a budget in usd or tokens counts it afterwards, and is "
                "exceeded by that of calls under way at most"
            )
            yield Problem(where, message, "warning")
        if in_dollars:
            yield from _price_problems(where, model)


def _price_problems(where: Where, model: PlannedModel) -> Iterator[Problem]:
    """Yields a model whose price is unknown."""
    provider = model.provider
    if dearest_price(provider, model.model, model.params.service_tier) is not None:
        return
    price = f"{{{model.model}: {{input: 1.00, output: 2.00}}}}"
    message = (
        f"a budget in usd holds for this stage, and the price of {model.ref} is not "
        f"known; add to agac.yml: `providers: {{{provider.name}: {{prices: "
        f"{price}}}}}` with its dollars per million tokens"
    )
    yield Problem(where, message)
