"""A database counted again from its rows: roll-ups, rows that stages made, what belongs to what."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from agac.store.db import migrations

Query = Callable[..., list[tuple[Any, ...]]]
"""Asks a database: SQL and its values."""

Counts = Counter[tuple[Any, ...]]

OUTCOMES = {1: "done", 2: "failed", 3: "dropped", 4: "dropped", 5: "skipped"}
PENDING, DONE, FAILED, FILTERED, SKIPPED, GONE = 0, 1, 2, 4, 5, 6
KEPT_TABLES = (
    "row", "task", "result", "attempt", "counter", "made", "member", "alike", "timing", "agent_turn", "tool_call",
)  # fmt: skip


def assert_recounted(query: Query, *, minutes: bool = True) -> None:
    """The database is whole, and its roll-ups say what a count of the rows says; those by `minutes` that were kept from
    the first one on."""
    assert query("PRAGMA integrity_check") == [("ok",)]
    if query("PRAGMA user_version") != [(migrations()[-1][0],)]:
        return  # killed while it was made: it holds no row yet
    told = query("SELECT run_id, outcome, error_type, count FROM counter WHERE stage = ''")
    assert _summed(told) == counted_rows(query)
    told = query(
        "SELECT run_id, stage, outcome, error_type, count FROM counter "
        "WHERE stage <> '' AND outcome NOT IN ('call', 'how', 'agreement', 'turn', 'tool')"
    )
    assert _summed(told) == counted_tasks(query)
    told = query(
        "SELECT run_id, stage, outcome, error_type, model, count FROM counter WHERE outcome IN ('turn', 'tool')"
    )
    assert _summed(told) == counted_conversations(query)
    if minutes:
        assert_minutes(query)
    counted_made = query(
        "SELECT run_id, origin, state, coalesce(error_stage, ''), coalesce(error_type, ''), count(*) FROM row "
        "WHERE origin IS NOT NULL AND place >= 0 AND state <> 6 GROUP BY 1, 2, 3, 4, 5"
    )
    told = query("SELECT run_id, origin, state, error_stage, error_type, count FROM made")
    assert _summed(told) == _summed(counted_made)


MINUTES = """
SELECT run_id, stage, model, sum(done), sum(reused), sum(failed), sum(skipped), sum(dropped), sum(calls),
    sum(failed_calls), sum(input_tokens), sum(cached_tokens), sum(output_tokens), round(sum(cost), 6) FROM minute
GROUP BY run_id, stage, model
"""
WHOLE = """
SELECT run_id, stage, model, sum(iif(outcome = 'done', count, 0)), sum(iif(outcome = 'reused', count, 0)),
    sum(iif(outcome = 'failed', count, 0)), sum(iif(outcome = 'skipped', count, 0)),
    sum(iif(outcome = 'dropped', count, 0)), sum(iif(outcome = 'call', count, 0)),
    sum(iif(outcome = 'call' AND error_type <> '', count, 0)), sum(input_tokens), sum(cached_tokens),
    sum(output_tokens), round(sum(cost), 6) FROM counter
WHERE outcome IN ('done', 'reused', 'failed', 'skipped', 'dropped', 'call') GROUP BY run_id, stage, model
"""
TIMES = "SELECT run_id, stage, bucket, sum(count) FROM minute_timing GROUP BY run_id, stage, bucket"
WHOLE_TIMES = """
SELECT run_id, stage, (bucket - (bucket % 4 + 4) % 4) / 4, sum(count) FROM timing WHERE measure = 'duration'
GROUP BY run_id, stage, 3
"""


def assert_minutes(query: Query) -> None:
    """The roll-ups by minute come to those of the whole run."""
    if query("SELECT 1 FROM event WHERE kind = 'gc' AND ended_at IS NULL"):
        return  # a drop that was killed: half of a run is there
    for parts, whole in ((MINUTES, WHOLE), (TIMES, WHOLE_TIMES)):
        found, told = (sorted(line for line in query(text) if any(line[3:])) for text in (parts, whole))
        assert found == told


def assert_descent(query: Query) -> None:
    """Every row that a stage made is there because of one that is there."""
    if query("PRAGMA user_version") != [(migrations()[-1][0],)]:
        return
    for what, found in orphans(query).items():
        assert not found, f"{what}: {found[:5]}"


def counted_rows(query: Query) -> Counts:
    """The input's rows of each run by outcome and kind of error, and how many there are."""
    found: Counts = Counter()
    rows = query(
        "SELECT run_id, state, CASE WHEN state = 2 THEN coalesce(error_type, '') ELSE '' END, count(*) FROM row "
        "WHERE ordinal IS NOT NULL GROUP BY 1, 2, 3"
    )
    for run, state, error, count in rows:
        found[run, "present", ""] += count
        if state != PENDING:
            found[run, OUTCOMES[state], error] += count
    return found


def counted_tasks(query: Query) -> Counts:
    """The tasks of each run by stage, outcome and kind of error: those of rows that left the input count no more, parts
    of large groups count as such."""
    found: Counts = Counter()
    rows = query(
        "SELECT r.run_id, t.stage, CASE WHEN r.place < 0 THEN 'part' ELSE t.outcome END, "
        "CASE WHEN r.place < 0 THEN '' ELSE coalesce(t.error_type, '') END, count(*) "
        "FROM task t JOIN row r ON r.key = t.row_key "
        "WHERE t.replica = 0 AND (r.ordinal IS NOT NULL OR r.origin IS NOT NULL) GROUP BY 1, 2, 3, 4"
    )
    names = stage_names(query)
    for run, stage, outcome, error, count in rows:
        found[run, names[run][stage], outcome, error] += count
    return found


def counted_conversations(query: Query) -> Counts:
    """The turns and the calls of tools of each run by stage, these by how they were served and by tool."""
    names = stage_names(query)
    rows = query(
        "SELECT r.run_id, t.stage, 'turn', iif(t.number = t.conversation, 'first', ''), t.agent, count(*) "
        "FROM agent_turn t JOIN row r ON r.key = t.row_key GROUP BY 1, 2, 4, 5 UNION ALL "
        "SELECT r.run_id, c.stage, 'tool', iif(c.how <> '' OR c.state = 'done', c.how, c.state), "
        "iif(c.result LIKE 'there is no tool %', '', c.name), count(*) "
        "FROM tool_call c JOIN row r ON r.key = c.row_key WHERE c.result IS NOT NULL GROUP BY 1, 2, 4, 5"
    )
    return _summed([(run, names[run][stage], *rest) for run, stage, *rest in rows])


def stage_names(query: Query) -> dict[int, list[str]]:
    """The names of each run's stages, by position."""
    bodies = query("SELECT run.id, body FROM run JOIN definition d ON d.hash = run.definition_hash")
    return {run: [stage["name"] for stage in json.loads(body)["stages"]] for run, body in bodies}


def orphans(query: Query) -> dict[str, list[tuple[Any, ...]]]:
    """What belongs to nothing, by what it is: nothing of it may be."""
    return {
        "children of a row that is gone, or that is not in the input": query(
            "SELECT c.id, c.state, p.id, p.state FROM row c JOIN row p ON p.key = c.parent_key WHERE c.state <> 6 "
            "AND (p.state = 6 OR (p.origin IS NULL AND p.ordinal IS NULL))"
        ),
        "children of a row that failed or was dropped": query(
            "SELECT c.id, c.state, p.id, p.state FROM row c JOIN row p ON p.key = c.parent_key "
            "WHERE c.state <> 6 AND c.place >= 0 AND p.state IN (2, 3, 4)"
        ),
        "groups without members": query(
            "SELECT id, state FROM row WHERE origin IS NOT NULL AND parent_key IS NULL AND state NOT IN (0, 6) "
            "AND NOT EXISTS (SELECT 1 FROM member WHERE group_key = row.key)"
        ),
        "members that are gone": query(
            "SELECT r.id, r.state, m.failed FROM member m JOIN row r ON r.key = m.row_key "
            "WHERE r.state = 6 OR (r.origin IS NULL AND r.ordinal IS NULL)"
        ),
        "members in another state than their group was told": query(
            "SELECT r.id, r.state, m.failed FROM member m JOIN row r ON r.key = m.row_key "
            "WHERE r.state <> 0 AND m.failed <> (r.state = 2)"
        ),
        "rows twice in the groups of a stage": query(
            "SELECT m.row_key, g.origin FROM member m JOIN row g ON g.key = m.group_key "
            "GROUP BY 1, 2 HAVING count(*) > 1"
        ),
        "rows at a dedupe that did not come to it": query(
            "SELECT r.id, r.state FROM alike a JOIN row r ON r.key = a.row_key "
            "WHERE r.state IN (2, 3, 6) OR (r.origin IS NULL AND r.ordinal IS NULL)"
        ),
        "tasks of rows that are gone": query(
            "SELECT r.id, t.stage FROM task t JOIN row r ON r.key = t.row_key WHERE r.state = 6"
        ),
        "two children at one place": query(
            "SELECT parent_key, origin, place FROM row WHERE parent_key IS NOT NULL AND place >= 0 "
            "GROUP BY 1, 2, 3 HAVING count(*) > 1"
        ),
        "done tasks without their result": query(
            "SELECT row_key, stage FROM task t WHERE result_id IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM result WHERE id = t.result_id)"
        ),
    }


def assert_at_rest(query: Query) -> None:
    """Nothing is left to do: of a run that came to its end without a scope. Of rows alike one went on."""
    assert (
        query("SELECT id, origin, place FROM row WHERE state = 0 AND (ordinal IS NOT NULL OR origin IS NOT NULL)") == []
    )
    kept = query(
        "SELECT a.origin, a.hash, sum(r.state <> 4), sum(c.state <> 6 AND c.state IS NOT NULL) FROM alike a "
        "JOIN row r ON r.key = a.row_key "
        "LEFT JOIN row c ON c.parent_key = a.row_key AND c.origin = a.origin GROUP BY a.run_id, a.origin, a.hash"
    )
    assert {(on, children) for _, _, on, children in kept} <= {(1, 1)}


def contents(query: Query) -> dict[str, list[tuple[Any, ...]]]:
    """All that is stored of runs, but when they were invoked."""
    names = {name for (name,) in query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = {name: sorted(query(f"SELECT * FROM {name}"), key=repr) for name in KEPT_TABLES if name in names}
    return found | {"run": query("SELECT id, revision, exported_revision FROM run ORDER BY id")}


def _summed(rows: list[tuple[Any, ...]]) -> Counts:
    found: Counts = Counter()
    for *key, count in rows:
        found[tuple(key)] += count
    return Counter({key: count for key, count in found.items() if count})
