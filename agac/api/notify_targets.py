"""Which targets of `notify` still get messages.

The files of a project decide. A target that was taken out of them gets nothing any more: neither
messages that wait in the store, nor those of a run that was stored with it. Its command may be why
it was removed."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

from agac.api.status import made_in_python
from agac.core.keys import canonical
from agac.core.types import counted
from agac.engine.invocation import Work
from agac.plan.plan import Plan
from agac.spec.loader import load_project, read_workflow, workflow_files
from agac.spec.notify import target_words
from agac.spec.paths import home_of
from agac.spec.project import Overrides
from agac.spec.rule_models import RunRulesFile
from agac.spec.rules import RunRules
from agac.spec.stage_keys import run_rules
from agac.store import runs
from agac.store.db import Database, write

_log = logging.getLogger("agac.notify")

_NOT_NAMED = "neither agac.yml nor the workflow {} names this target any more"


async def with_named_targets(database: Database, root: Path, plan: Plan) -> Plan:
    """Gives the stored plan without targets that the files of the project do not name any more.
    Logs which."""
    if not plan.rules.notify:
        return plan
    named = await _named_now(database, root, plan.workflow)
    if named is None:
        return plan
    kept = []
    for target in plan.rules.notify:
        if canonical(target.stored()) in named:
            kept.append(target)
            continue
        reason = _NOT_NAMED.format(plan.workflow)
        _log.warning(
            "%s is not told of this run: %s. Add it to `notify` to have it told.",
            target_words(target.stored()),
            reason,
        )
    return replace(plan, rules=replace(plan.rules, notify=tuple(kept)))


async def drop_unnamed(database: Database, work: Work) -> list[str]:
    """Drops the messages that wait for targets which the files do not name any more, and writes a
    sentence for each target.

    If files cannot be read, and for workflows made in Python, messages wait on. A crash leaves
    them waiting, or dropped: the next invocation looks again."""
    sentences = list[str]()
    current = {canonical(target.stored()) for target in work.plan.rules.notify}
    for workflow, target, count in await runs.waiting_messages(database):
        if workflow == work.plan.workflow and target in current:
            continue
        named = await _named_now(database, work.root, workflow)
        if named is None or target in named:
            continue
        reason = _NOT_NAMED.format(workflow)
        await write(database, "notifications_dropped", f"dropped: {reason}", workflow, target)
        messages = counted(count, "message")
        sentences.append(
            f"Dropped: {messages} of the workflow {workflow} to "
            f"{target_words(json.loads(target))}: {reason}. "
            "They are not sent; to have later ones sent, add the target to `notify` again"
        )
    return sentences


async def _named_now(database: Database, root: Path, workflow: str) -> frozenset[str] | None:
    """Reads the targets that the project names for a workflow now; None if that is unknown."""
    in_python = await made_in_python(database, workflow)
    return await asyncio.to_thread(_named_targets, root, workflow, in_python=in_python)


def _named_targets(root: Path, workflow: str, *, in_python: bool) -> frozenset[str] | None:
    """Reads the targets that the files name for a workflow now, each as the store has it: those of
    its file, or without a file those of agac.yml.

    None if the files cannot be read, and if a program has the keys, so that no file does: a file
    of the workflow counts, whatever is stored, as that may have come from a remote."""
    project, _ = load_project(root, {})
    if project is None:
        return None
    files = workflow_files(project, workflow)
    if in_python and not files:
        return None
    rules: list[RunRules] = []
    for path in files:
        file, document, _ = read_workflow(path, project.shown(path), home_of(root))
        if file is None:
            return None
        rules.append(run_rules(file, document, project, Overrides()))
    if not files:
        rules.append(run_rules(RunRulesFile(), project.document, project, Overrides()))
    return frozenset(canonical(target.stored()) for each in rules for target in each.notify)
