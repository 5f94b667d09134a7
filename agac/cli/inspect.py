"""`agac show`, `inspect`, `why` and `sql`: results, a row with its stages and attempts, why a task
was run, queries."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import terminal
from agac.cli.batch import in_batch_words
from agac.cli.main import Globals, json_option, workflow_option
from agac.cli.run_errors import error_head
from agac.cli.status import next_step_lines, run_lines
from agac.core.errors import UsageError
from agac.core.keys import is_job, job_alias
from agac.core.reading import read_as
from agac.core.text import cells, is_unicode, row_command, split_lines
from agac.core.types import counted, dollars
from agac.engine.summary import RunSummary

if TYPE_CHECKING:
    from agac.api.inspect import InspectReport
    from agac.api.why import TaskInputs, WhyReport
    from agac.store.query import View


@click.command(
    help="Show a run (RUN: its number, or `last`), or one of its rows by id: every stage, attempt, "
    "prompt, reply, error, time and cost."
)
@click.argument("run")
@click.argument("row", required=False)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@json_option
@click.pass_obj
def inspect(settings: Globals, run: str, row: str | None, stage: str | None, as_json: bool) -> None:
    report = api.inspect(run, row, stage=stage, project=settings.project_dir)
    terminal.print_report(
        report, lambda found: map(terminal.printable, inspect_lines(found)), as_json=as_json
    )


@click.command(
    help="Show the first results of a run (RUN: its number, or `last`) as a table. They come "
    "from the store, so an unfinished run has them too."
)
@click.argument("run", default="last")
@workflow_option
@click.option(
    "--row", metavar="ID", help="Only this row, in full: its result or its error, and its input."
)
@click.option(
    "--head",
    type=click.IntRange(1, 1_000),
    default=20,
    metavar="N",
    show_default=True,
    help="The first N results.",
)
@json_option
@click.pass_obj
def show(settings: Globals, /, run: str, workflow: str | None, as_json: bool, **which: Any) -> None:
    report = api.show(run, workflow, **which, project=settings.project_dir)
    terminal.print_report(report, lambda found: show_lines(found, **which), as_json=as_json)


def show_lines(report: InspectReport, row: str | None, head: int) -> Iterator[str]:
    run, number, shown = (
        report.run,
        report.run["run"],
        [dict(_named_texts(one)) for one in report.rows or ()],
    )
    yield f"{terminal.run_name(run['workflow'], number)}: {run['state']}\n"
    if row is not None:
        yield from terminal.record_lines((one.items() for one in shown), cut=False)
        if not shown:
            yield (
                f"No result of {row!r} is there. See what became of the row with: "
                f"{row_command(number, row)}"
            )
    elif shown:
        names = dict.fromkeys(name for one in shown for name in one if name != "row_number")
        header = [name.removeprefix("result.") for name in names]
        yield terminal.table(
            header, [[one.get(name, "") for name in names] for one in shown], one_line=True
        )
    else:
        yield f"No row has a result{' yet' if run['rows']['open'] else ''}."
        yield from next_step_lines(api.StatusReport(report.project, 0, [run]))
    if len(shown) == head:
        name = job_alias(number) if is_job(run["workflow"]) else run["workflow"]
        everything = (
            f"agac export --run {number} --to {name}.csv{'' if run['complete'] else ' --partial'}"
        )
        yield (
            f"\nThe first {head:,}. More of them: --head N; one in full: --row ID; all in "
            f"a file: {everything}"
        )


def _named_texts(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    error = row["error"] and _error_text(row["error"])
    for name, value in {**row, "error": error}.items():
        if isinstance(value, dict):
            yield from (
                (f"{name}.{inner}", terminal.value_text(one)) for inner, one in value.items()
            )
        elif value is not None and name != "ok":
            yield name, terminal.value_text(value)


@click.command(
    help="Show the request of a row (ROW: its id) of a run (RUN: its number, or `last`) at a "
    "stage, and what changed since the last time."
)
@click.argument("run", metavar="RUN")
@click.argument("row", metavar="ROW")
@click.argument("stage", metavar="STAGE")
@json_option
@click.pass_obj
def why(settings: Globals, run: str, row: str, stage: str, as_json: bool) -> None:
    report = api.why(run, row, stage, project=settings.project_dir)
    terminal.print_report(
        report, lambda found: map(terminal.printable, why_lines(found)), as_json=as_json
    )


@click.command(help="Run one SELECT on the store. Without QUERY, list the views.")
@click.argument("words", metavar="[QUERY]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, one object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), metavar="N", help="Print the first N rows at most."
)
@click.pass_obj
def sql(
    settings: Globals, words: tuple[str, ...], as_json: bool, as_csv: bool, limit: int | None
) -> None:
    if len(words) > 1:
        raise click.UsageError(
            "put the query in quotes: agac sql 'SELECT …'", click.get_current_context()
        )
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude one another", click.get_current_context())
    if not words:
        if as_json:
            terminal.print_json(
                [{"name": v.name, "meaning": v.meaning, "columns": v.columns} for v in api.views()]
            )
        else:
            terminal.print_lines(views_lines(api.views()))
        return
    with api.sql(words[0], project=settings.project_dir) as answer:
        values = iter(answer)
        rows = islice(values, limit)
        if as_json:
            lines = json_lines(answer.columns, rows, only_ascii=not is_unicode(sys.stdout.encoding))
            terminal.print_data(lines, is_json=True)
        elif as_csv:
            terminal.print_data(csv_lines(answer.columns, rows))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            terminal.print_lines(text_lines(answer.columns, rows, width=width))
        more = limit is not None and next(values, None) is not None
    if more and not settings.quiet:
        terminal.say(f"Only the first {limit:,}: there are more.")


def inspect_lines(report: InspectReport) -> Iterator[str]:
    run = report.run
    rows = report.rows
    if rows is None:
        yield from run_lines(run)
        for one in run.get("remote", ()):
            if one["commit"]:
                version = f"commit {one['commit']}, {one['name']}"
            else:
                version = one["hash"] or "read where it is"
            yield f"Remote {one['what']}: {one['reference']} ({version})"
        for stage in run["definition"]["stages"]:
            yield ""
            needs = ", ".join(
                [stage["needs"]] if isinstance(stage["needs"], str) else stage["needs"] or ()
            )
            if "operation" in stage:
                does = _compact(stage["operation"])
            else:
                does = _model(stage)
            yield f"Stage {stage['name']}: {does}" + (f", needs {needs}" if needs else "")
            if stage.get("when"):
                yield from _block(f"when (otherwise: {stage['otherwise']})", stage["when"])
            if "operation" not in stage:
                yield from _definition(stage)
        errors = read_as(RunSummary, run).errors
        if errors:
            yield from ("", "Errors:")
        for error in errors:
            example = error.example
            yield f"{error_head(error)}, e.g. {example.id!r}:"
            yield f"    {terminal.first_line(example.message)}"
            yield f"    {row_command(run['run'], example.id)}"
        yield from ("", f"Look at one row with: agac inspect {run['run']} ROW")
    for number, row in enumerate(rows or ()):
        yield from ["", *_row(run, row)] if number else _row(run, row)


def _definition(stage: dict[str, Any]) -> Iterator[str]:
    yield from _alias(stage)
    replicas = replicas_words(stage)
    if replicas:
        yield f"  replicas: {replicas}"
    if stage["schema"]:
        yield f"  schema: {_compact(stage['schema']['body'])}"
    if stage["system"]:
        yield from _block("instructions", stage["system"])
    for message in stage.get("messages", ()):
        yield from _block(f"message, {message['role']}", message["content"])
    yield from _block("prompt", stage["prompt"])


def _alias(stage: dict[str, Any]) -> Iterator[str]:
    alias = stage.get("alias")
    if alias:
        yield f"  short name: {alias['written']} = {alias['means']}"


def _model(stage: dict[str, Any]) -> str:
    params = [f"{name}={terminal.value_text(value)}" for name, value in stage["params"].items()]
    return ", ".join([stage["model"], *params])


def _row(run: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    repeated = ", its id repeated" if row["occurrence"] else ""
    match row["relation"]:
        case "input":
            if row["in_input"]:
                origin = f"row {row['row_number']:,} of the input"
            else:
                origin = "left the input"
        case "group":
            origin = f"group of {row['made_by']}"
        case "part":
            origin = f"part of the group {row['parents'][0]['id']!r} of {row['made_by']}"
        case "kept":
            origin = f"kept by {row['made_by']}"
        case _:
            origin = f"child {row['place']} by {row['made_by']}"
    name = terminal.run_name(run["workflow"], run["run"])
    yield f"{name}, {row['id']!r} ({origin}{repeated}): {row['state']}"
    if row["error"]:
        yield f"  {_error_text(row['error'])}"
    if "kept_row" in row:
        yield (
            f"  left before any stage: its id is that of row {row['kept_row']}, which is "
            "kept (on_duplicate_id)"
        )
    yield from _relatives(run["run"], row)
    yield from ("", "Fields:")
    if row["fields"] is None:
        yield "  none: the record could not be read"
    if row["fields"] == {}:
        yield "  none of its own"
    for name, value in (row["fields"] or {}).items():
        yield from _block(name, terminal.value_text(value))
    for stage in row["stages"]:
        yield ""
        yield from _stage(stage)


def _relatives(run: int, row: dict[str, Any]) -> Iterator[str]:
    """Its parents, and the rows made of it, with the commands that show these."""
    for parent in row["parents"][:1]:
        if parent["id"] != row["id"]:
            command = f": {row_command(run, parent['id'])}"
        else:
            command = ", of the same id"
        words = {"group": "a group of", "kept": "kept by"}
        level = f"{words.get(parent['relation'], 'a child by')} {parent['made_by']}"
        yield (
            f"  made of: {parent['id']!r}, "
            f"{level if parent['made_by'] else 'a row of the input'}{command}"
        )
    for made in row["children"]:
        states = ", ".join(f"{count:,} {word}" for word, count in made["states"].items())
        if made["relation"] == "kept":
            yield f"  kept by {made['made_by']}: it continues under the same id ({states})"
            continue
        word = "parts" if made["relation"] == "part" else "children"
        some = _some(run, made["ids"], made["count"])
        yield f"  {word} by {made['made_by']}: {made['count']:,} ({states}): {some}"
    members = row["members"]
    if members:
        yield f"  members: {members['count']:,}: {_some(run, members['ids'], members['count'])}"
        if members["failed"]:
            yield (
                f"  failed members: {members['failed']:,}: "
                f"{_some(run, members['failed_ids'], members['failed'])}"
            )
    for group in row["groups"]:
        yield (
            f"  in the group {group['id']!r} of {group['made_by']}: {row_command(run, group['id'])}"
        )


SHOWN_IDS = 5


def _some(run: int, ids: list[str | int], count: int) -> str:
    if not ids:
        return "none"
    more = ", …" if count > SHOWN_IDS else ""
    return f"{', '.join(map(repr, ids[:SHOWN_IDS]))}{more}; {row_command(run, ids[0])}"


def _vote(vote: dict[str, Any]) -> str:
    values = []
    for one in vote["values"]:
        *others, last = map(str, one["replicas"])
        values.append(
            f"{_compact(one['value'])} by {' and '.join(filter(None, [', '.join(others), last]))}"
        )
    agreed = f"agreement {vote['agreement']:.2f}, the result is that of replica {vote['taken']}"
    if "lead" in vote:
        counts = [len(one["replicas"]) for one in vote["values"]]
        asked = sum(counts) + len(vote["without"])
        agreed = f"votes {':'.join(map(str, counts))} of {asked} asked; {agreed}"
    return f"vote on {vote['field'] or 'the answer'}: {', '.join(values)}; {agreed}"


def _stage(stage: dict[str, Any]) -> Iterator[str]:
    yield (
        f"Stage {stage['name']}: "
        f"{stage['outcome']}{' (of earlier content)' if stage['stale'] else ''}"
    )
    if stage["passed_over"]:
        yield f"  {skip_words(stage['passed_over'])}"
        yield f"  finished: {stage['settled_at']}"
        yield from (line for attempt in stage["attempts"] for line in _attempt(attempt))
        return
    yield (
        f"  does: {_compact(stage['operation'])}"
        if stage["operation"]
        else f"  model: {_model(stage)}"
    )
    yield from _alias(stage)
    if stage["outcome"] != "open":
        yield from _outcome(stage)
    for task in stage["in_batches"]:
        yield f"  {in_batch_words(task)}"
    for one in stage.get("replicas", ()):
        yield (
            f"  Replica {one['replica']}: "
            f"{one['outcome']}{' (of earlier content)' if one['stale'] else ''}"
        )
        if one["outcome"] != "open":
            if one["error"]:
                text = _error_text(one["error"])
            else:
                text = _compact(one["result"])
            yield from _block("error" if one["error"] else "answer", text, "    ")
            if one["reused_from"]:
                yield f"    reused: {_reused_from(one['reused_from'])}"
    vote = stage.get("vote")
    if vote:
        yield f"  {_vote(vote)}"
    for message in stage["prompt"] or ():
        yield from _block(f"prompt, {message['role']}", message["text"])
    if stage["prompt_note"]:
        yield (
            f"  {'not done' if stage['operation'] else 'prompt: not shown'}: {stage['prompt_note']}"
        )
    turns = {
        (one["invocation"], one["attempt"], one["fingerprint"]): one
        for one in stage.get("turns", ())
    }
    for attempt in stage["attempts"]:
        yield from _attempt(attempt)
        turn = turns.get((attempt["invocation"], attempt["number"], attempt["fingerprint"]))
        if turn:
            agent = f" of {turn['agent']}" if turn["agent"] else ""
            if turn["ended"]:
                ended = f", the conversation ended: {turn['ended']}"
            else:
                ended = ""
            yield (
                f"    turn {turn['number']}{agent}: {counted(len(turn['calls']), 'call')} "
                f"of tools{ended}"
            )
            for call in turn["calls"]:
                how = f", {call['how']}" if call["how"] else ""
                if call["duration_s"] is not None:
                    took = f" in {call['duration_s'] * 1000:,.0f} ms"
                else:
                    took = ""
                if call["state"] == "intent":
                    state = "begun, its end is not known"
                else:
                    state = call["state"]
                head = f"{call['name']}({call['arguments'][:MOST_SHOWN]}): {state}{how}{took}"
                yield from _block(head, (call["result"] or "")[:MOST_SHOWN], "      ")


MOST_SHOWN = 500  # characters of a call's arguments, and of its result; `--json` has all


def _outcome(stage: dict[str, Any]) -> Iterator[str]:
    does = stage["operation"]
    # its result is not stored, since it costs nothing
    if does and not {"python", "review"} & does.keys() and not stage["error"]:
        yield f"  finished: {stage['settled_at']}"
        return
    yield f"  fingerprint: {stage['fingerprint'] or 'none'}   finished: {stage['settled_at']}"
    if "reviewed" in stage:
        if stage["answered_by"]["provider"] == "people":
            by = f", by {stage['answered_by']['model']}"
        else:
            by = ""
        yield f"  reviewed: {stage['reviewed']}{by}"
    if stage["how"] == ["adopted"]:
        yield f"  adopted: it stood in {stage['answered_by']['model']}; nothing was asked"
    elif "manual" in stage["how"]:
        yield f"  set by hand, by {stage['answered_by']['model']}"
    elif stage["answered_by"] and not does:
        after = [way for way in stage["how"] if way != "misformatted"]
        how = f", after {', '.join(after)}" if after else ""
        how += ", with a text that lacks its `format`" if after != stage["how"] else ""
        yield f"  answered by: {_endpoint(stage['answered_by'])}{how}"
    if stage["reused_from"]:
        yield f"  reused: {_reused_from(stage['reused_from'])}"
    if stage["error"]:
        yield from _block("error", _error_text(stage["error"]))
        if stage["traceback"]:
            yield from _block("traceback", stage["traceback"].rstrip())
    else:
        yield from _block("result", json.dumps(stage["result"], ensure_ascii=False, indent=2))
    sources = stage.get("sources")
    if sources:
        yield from _block("sources", "\n".join(map(_source, sources)))


def _source(one: dict[str, Any]) -> str:
    """A page that a provider's search found, on a line of its own."""
    used = "cited" if one["cited"] else "found"
    return f"{used}: {one['url']}   {one['title']}".rstrip()


def _reused_from(origin: dict[str, Any]) -> str:
    if origin["run"] is None:
        return (
            f"answered {origin['answered_at']}; the row of that request has changed since "
            "or is gone"
        )
    command = row_command(origin["run"], origin["row"])
    return (
        f"answered {origin['answered_at']} for row {origin['row']!r} of run "
        f"{origin['run']}: {command}"
    )


def _attempt(attempt: dict[str, Any]) -> Iterator[str]:
    if "replica" in attempt:
        replica = f" for replica {attempt['replica']}"
    else:
        replica = ""
    head = f"Attempt {attempt['number']} of invocation {attempt['invocation']}{replica}"
    yield f"  {head}: {attempt['purpose']}, {_endpoint(attempt)}"
    first = attempt["ttft_s"]  # of a streamed reply, and of its answer itself
    answer = attempt["time_to_response_s"]
    times = [f"first token {first * 1000:,.0f} ms"] if first is not None else []
    times += [f"of the answer {answer * 1000:,.0f} ms"] if answer not in (None, first) else []
    facts = [attempt["started_at"]]
    facts.append(
        f"{attempt['duration_s'] * 1000:,.0f} ms" + (f" ({', '.join(times)})" if times else "")
    )
    facts.append(
        f"HTTP {attempt['http_status']}" if attempt["http_status"] is not None else "no response"
    )
    if attempt["service_tier"]:
        facts.append(f"tier {attempt['service_tier']}")
    for key, part, word in (("input", "cached", "tokens in"), ("output", "reasoning", "out")):
        if attempt[f"{key}_tokens"] is not None:
            if attempt[f"{part}_tokens"]:
                some = f" ({attempt[f'{part}_tokens']:,} {part})"
            else:
                some = ""
            facts.append(f"{attempt[f'{key}_tokens']:,} {word}{some}")
    if attempt["cost_usd"] is not None:
        facts.append(dollars(attempt["cost_usd"], 6, simulated=attempt["simulated"]))
    elif not attempt["error"]:
        facts.append("no known price")
    yield f"    {', '.join(facts)}"
    if attempt["of_earlier_content"]:
        yield (
            "    sent with another prompt, before the row or an answer before it changed, "
            "or was to be given again"
        )
    if attempt["asked_again_with"]:
        yield from _block(
            "re-asked, after the prompt and the last reply, with",
            attempt["asked_again_with"],
            "    ",
        )
    if attempt["perhaps_billed"]:
        yield "    no answer came, yet it may have been billed"
    if attempt["error"]:
        yield from _block("error", _error_text(attempt["error"]), "    ")
    if attempt["reply_kept"]:
        yield from _block("reply", attempt["reply"], "    ")
    elif attempt["http_status"] is not None:
        yield "    reply: not stored (keep_replies: failed, or an empty one)"


def _endpoint(endpoint: dict[str, Any]) -> str:
    return f"{endpoint['provider']}/{endpoint['model']} at {endpoint['base_url']}"


def _error_text(error: dict[str, Any]) -> str:
    place = f" in {error['stage']}" if error.get("stage") else ""
    return f"{error['type']}{place}: {error['message']}"


def _block(name: str, text: str, by: str = "  ") -> Iterator[str]:
    """`name: text`, or the name and the lines of the text below it; on a terminal the beginning of
    a long one."""
    text = terminal.shortened(text)
    if "\n" in text:
        yield f"{by}{name}:"
        yield from (f"{by}  {line}".rstrip() for line in text.split("\n"))
    else:
        yield f"{by}{name}: {text}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def skip_words(reason: dict[str, Any]) -> str:
    """Why a stage skipped or dropped a row, on one line: its guard with the values, its function,
    or an equal row."""
    if "python" in reason:
        return f"{reason['python']} gave None"
    if "dedupe" in reason:
        return f"the same {', '.join(reason['dedupe'])} as row {reason['first']!r}, which went on"
    guard = " ".join(split_lines(reason["when"]))
    values = [f"{name} = {_compact(value)}" for name, value in reason["values"].items()]
    return f"not true: {guard}" + (f"   with {', '.join(values)}" if values else "")


def replicas_words(stage: dict[str, Any]) -> str:
    """`3, vote on label`: how many times a stage runs each row; empty for once."""
    if stage.get("replicas", 1) == 1:
        return ""
    vote = stage.get("vote")
    said = stage["replicas"]
    if not isinstance(vote, dict):
        return f"{said}, vote on {vote}" if vote else f"{said}"
    others = (f"{name} {value}" for name, value in vote.items() if name != "field")
    return (
        f"{said}{' at most' * ('lead' in vote)}, vote on "
        f"{', '.join([vote.get('field', 'the answer'), *others])}"
    )


def why_lines(report: WhyReport) -> Iterator[str]:
    now, again, found = report.now, report.again, report.now.as_json()
    yield (
        f"{terminal.run_name(report.workflow, now.run)}, row {report.row_id!r}, stage "
        f"{report.stage}"
    )
    yield ""
    if found["passed_over"]:
        yield f"outcome: {found['outcome']}, {found['settled_at']}"
        yield skip_words(found["passed_over"])
    else:
        yield from _task(now, found)
    yield ""
    if again is not None:
        when = f"This run ran it before, {again.as_json()['asked_at']}"
        because = ", ".join(again.because)
        if found["passed_over"]:
            yield f"{when}; since then: {because}."
        elif again.same_question:
            yield f"{when}, with the same request; run again because {because}."
        else:
            yield f"{when}, with another request; since then: {because}."
            yield "  The earlier request is not stored."
    yield from _compared(report)


def _task(task: TaskInputs, found: dict[str, Any]) -> Iterator[str]:
    """What became of a task, and what its fingerprint is made of; `found` is its JSON."""
    operation = task.stage.operation
    if operation is None or found["fingerprint"]:
        yield f"fingerprint: {found['fingerprint'] or 'none: no request could be made'}"
    if found["in_batch"]:
        yield in_batch_words(found["in_batch"])
    if found["outcome"] is None:
        yield "outcome: none yet" if found["in_batch"] or task.turns else "outcome: not run yet"
    else:
        yield f"outcome: {found['outcome']}, {found['settled_at']}"
    if found["error"]:
        yield f"error: {found['error']['type']}: {found['error']['message']}"
    if found["answered_by"] and operation is None:
        how = f" ({found['how']})" if found["how"] else ""
        yield f"answered by: {found['answered_by']}{how}, {found['answered_at']}"
    turns = task.turns
    if turns:
        calls = [call["name"] for turn in turns for call in turn["calls"]]
        tools = (
            ", ".join(f"{number} x {name}" for name, number in Counter(calls).items()) or "no tools"
        )
        yield (
            f"conversation: {counted(len(turns), 'turn')}, {tools}; see "
            f"{row_command(task.run, task.history.row.id)}"
        )
    yield ""
    if operation is not None:
        yield f"This stage calls no model. It does: {_compact(operation.body())}"
        return
    yield "The fingerprint is made of:"
    yield from _made_of(task, found)


def _made_of(task: TaskInputs, found: dict[str, Any]) -> Iterator[str]:
    parts = found["made_of"]
    schema = found["made_of"]["schema"]
    yield f"  model: {parts['model']}"
    yield f"  params: {json.dumps(parts['params']) if parts['params'] else 'none'}"
    yield f"  schema: {schema['name']} ({schema['hash']})" if schema else "  schema: none"
    replicas = replicas_words(parts)
    if replicas:
        yield f"  replicas: {replicas}"
    if parts["salt"]:
        yield f"  reuse: {parts['reuse']}, separated by {parts['salt']}"
    if parts["messages"] is None:
        yield (
            f"  messages: {'none' if found['outcome'] is None else 'cannot be shown'}: "
            f"{task.missing}"
        )
    for message in parts["messages"] or ():
        yield f"  {message['role']}:"
        yield from (
            f"    {line}".rstrip() for line in terminal.shortened(message["text"]).split("\n")
        )


def _compared(report: WhyReport) -> Iterator[str]:
    now = report.now
    before = report.before
    if before is None:
        if report.again is None:
            yield "No earlier run has run this stage for this row."
        return
    run = f"run {before.run}"
    reason = before.passed_over
    is_guarded = reason is not None or now.passed_over is not None
    if is_guarded:
        yield f"In {run}: {f'{before.outcome}: {skip_words(reason)}' if reason else 'it was run'}"
    elif now.fingerprint is not None and now.fingerprint == before.fingerprint:
        if report.anew is not None:
            then = f", but the task was run again: {report.anew}."
        else:
            then = ": its answer is reused."
        yield f"Nothing changed since {run}{then}"
        return
    if report.differences:
        yield f"Changes since {run}:"
    elif is_guarded:
        return
    elif now.stage.operation is not None:
        yield f"Neither the stage nor the row's own fields changed since {run}."
    elif now.fingerprint is None:
        yield f"It was run in {run}."
    else:
        yield f"The fingerprint changed since {run}, but the request of that run cannot be rebuilt."
    for one in report.differences:
        if "diff" in one:
            yield f"  {one['what']}:"
            yield from (
                f"    {line}" for line in terminal.shortened("\n".join(one["diff"][2:])).split("\n")
            )
        else:
            yield f"  {one['what']}: {_compact(one['before'])} → {_compact(one['now'])}"


Rows = Iterable[tuple[Any, ...]]
BLOCK_ROWS = (
    1_000  # rows from which a table takes the widths of its columns; no more are kept in memory
)


def json_lines(columns: Sequence[str], rows: Rows, *, only_ascii: bool) -> Iterator[str]:
    """One JSON array, one object per line. Raises UsageError where two columns have one name."""
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        what = f"several columns are called {twice[0]}, and a JSON object has each name once"
        raise UsageError(
            what, remedy=f"Name them apart, as in `SELECT … AS other_{twice[0]}`, or use --csv."
        )
    last = None
    for row in rows:
        yield "[" if last is None else f"{last},"
        found = dict(zip(columns, map(_json_value, row), strict=True))
        last = "  " + json.dumps(found, ensure_ascii=only_ascii, allow_nan=False)
    yield from ["[]"] if last is None else [last, "]"]


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def csv_lines(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """A header, then one line per row, as in RFC 4180; null is empty."""
    # its line end makes it quote every line end in a value
    writer: Any = csv.writer(SimpleNamespace(write=str))
    for row in chain([columns], rows):
        yield writer.writerow(map(_json_value, row)).removesuffix("\r\n")


def text_lines(columns: Sequence[str], rows: Rows, *, width: int | None) -> Iterator[str]:
    """A table. On a terminal of `width` columns that is too narrow for it, the values of each row
    below one another."""
    values = iter(rows)
    first = list(islice(values, BLOCK_ROWS))
    if (
        width is not None
        and first
        and max(map(cells, terminal.table_lines(columns, [first], _text_value))) > width
    ):
        texts = (zip(columns, map(_text_value, row), strict=True) for row in chain(first, values))
        yield from terminal.record_lines(texts, cut=True)
        return
    blocks = chain([first], iter(lambda: list(islice(values, BLOCK_ROWS)), []))
    yield from terminal.table_lines(columns, blocks, _text_value)


def _text_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and 1e-12 < abs(value) < 1:
        return format(Decimal(repr(value)), "f")  # not 8.6e-05: amounts are compared at a glance
    return str(_json_value(value))


def views_lines(views: Sequence[View]) -> Iterator[str]:
    for view in views:
        yield f"{view.name}: {view.meaning}"
        yield ""
        columns = terminal.table(["column", "meaning"], list(view.columns.items()))
        yield from (f"  {line}" for line in columns.split("\n"))
        yield ""
    yield 'For example: agac sql "SELECT stage, model, calls, cost_usd FROM v_costs WHERE run = 1"'
