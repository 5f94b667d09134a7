"""What a refusal advises can be done: each case is a workflow that is refused, a part of the message, and the workflow
after somebody did what the message says, which is valid."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from support.project import ProjectFolder

ASK = "{name: a, output_field: t}"
FUNCTION = "python: tools/sums.py:total"


class Case(NamedTuple):
    """The stages before and after; `more` is what the file has besides, `files` what else is written."""

    before: str
    said: str
    after: str
    more: tuple[str, str] = ("", "")
    files: Mapping[str, str] = MappingProxyType({})


LIST = "'topic' holds text, not a list; make a list of it in a python stage before this one"
LISTING = "{name: p, python: tools/sums.py:parts}\n  - {name: e, explode: parts, python: tools/sums.py:parts}"
NO_MODEL = "a stage with python asks no model; remove {}, or move it to a stage that asks one"
SINGLE = "a stage with {} works on single rows; remove group_by, or add a stage with group_by before or after it"
PLANNER = "add `row_budget: {turns: 50}` to the workflow, `max_turns` to the stage, or a number here"
CARD = "Declare it in `variables` of the card or `vars` of the workflow, or write"
PLANNED = {"agentcards/plan.md": "---\ntype: iterative_planner\nagents: [plain]\n---\nPlan.\n"}
NAMED = {"agentcards/named.md": "---\n---\nFollow {{policy}}.\n"}

CASES = [
    Case(
        "{name: g, select: [topic], group_by: topic}", SINGLE.format("select"),
        "{name: g, select: [topic]}\n  - {name: h, group_by: topic, " + FUNCTION + "}",
    ),
    Case("{name: g, filter: 'true', group_by: topic}", SINGLE.format("filter"), "{name: g, filter: 'true'}"),
    Case(
        "{name: g, group_by: topic, reduce: {max_rows: 3}, " + FUNCTION + "}", "so that none is cut; remove reduce",
        "{name: g, group_by: topic, " + FUNCTION + "}",
    ),
    Case(
        "{name: g, group_by: topic, prompt: x, " + FUNCTION + "}", NO_MODEL.format("prompt"),
        "{name: g, group_by: topic, " + FUNCTION + '}\n  - {name: s, prompt: "${topic}"}',
    ),
    Case("{name: f, vote: t, " + FUNCTION + "}", NO_MODEL.format("vote"), "{name: f, " + FUNCTION + "}"),
    Case(
        "{name: f, replicas: 3, " + FUNCTION + "}", NO_MODEL.format("replicas"),
        "{name: f, " + FUNCTION + "}\n  - {name: a, replicas: 3}",
    ),
    Case("{name: a, needs: a}", "needs itself; name the stage before it, or write `needs: []`", "{name: a, needs: []}"),
    Case("{name: r, review: {}}", "add a stage before it, which asks a model", ASK + "\n  - {name: r, review: {}}"),
    Case(
        "{name: r, review: {edit: a}}", "not upstream of this stage; add a stage before it, which asks a model",
        ASK + "\n  - {name: r, review: {edit: a}}",
    ),
    Case(
        ASK + "\n  - {name: b, needs: []}\n  - {name: r, needs: [a, b], review: {}}", "name it: `edit: STAGE`",
        ASK + "\n  - {name: b, needs: []}\n  - {name: r, needs: [a, b], review: {edit: a}}",
    ),
    Case(
        "{name: f, " + FUNCTION + "}\n  - {name: r, review: {}}",
        "name a stage that asks one as `edit`, or add one before this stage",
        "{name: f, " + FUNCTION + "}\n  - " + ASK + "\n  - {name: r, review: {}}",
    ),
    Case("{name: e, explode: topic, python: tools/sums.py:parts}", LIST, LISTING),
    Case(
        "{name: a, replicas: 3, vote: t, output_schema: {type: array}}",
        "let output_schema be an object with that field",
        "{name: a, replicas: 3, vote: t, output_schema: {t: string}}",
    ),
    Case(
        "{name: a, replicas: 3, vote: t.b, output_schema: {t: string}}", "t of the results has no fields; write 't'",
        "{name: a, replicas: 3, vote: t, output_schema: {t: string}}",
    ),
    Case(
        "{name: a, run_mode: batch, batch: {deadline: 5w}}",
        "longer than any provider keeps a batch; write 30d or less",
        "{name: a, run_mode: batch, batch: {deadline: 30d}}",
    ),
    Case(
        "{name: a, tools: ['tools/sums.py:look'], tools_mode: replay}",
        "add --run N to `agac run` or `agac plan`, and --tools-mode replay in the place of this key",
        "{name: a, tools: ['tools/sums.py:look']}",
    ),
    Case("{name: a, agent: named}", CARD, "{name: a, agent: named}", ("", "vars: {policy: be kind}\n"), NAMED),
    Case("{name: a, agent: plan}", PLANNER, "{name: a, agent: plan, max_turns: 9}", files=PLANNED),
    Case("{name: a, agent: plan}", PLANNER, "{name: a, agent: plan}", ("", "row_budget: {turns: 50}\n"), PLANNED),
    Case(
        "{name: g, group_by: a.b}", "cannot be named here, for its dot; rename it first",
        "{name: n, rename: {a.b: ab}}\n  - {name: g, group_by: ab}",
    ),
    Case(
        "{name: g, group_by: rows_count}", "rename the field first",
        "{name: n, rename: {rows_count: number}}\n  - {name: g, group_by: number}",
    ),
    Case(
        "{name: d, dedupe: topic, when: 'true'}", "put the condition into a filter before it",
        "{name: n, filter: 'true'}\n  - {name: d, dedupe: topic}",
    ),
    Case(
        "{name: f, timeout: 3, " + FUNCTION + "}", "add processes, such as `processes: 4`",
        "{name: f, timeout: 3, processes: 4, " + FUNCTION + "}",
    ),
    Case(
        "{name: d, dedupe: topic}\n  - {name: g, needs: [], group_by: topic}", "let one of them follow the other",
        "{name: d, dedupe: topic}\n  - {name: g, needs: [d], group_by: topic}",
    ),
    Case(
        ASK + "\n  - {name: g, group_by: []}\n  - {name: b, needs: a}", "choose with `output: {stages: [b]}`",
        ASK + "\n  - {name: g, group_by: []}\n  - {name: b, needs: a}", ("", "output: {stages: [b]}\n"),
    ),
    Case(
        "{name: a, expect: {label: label}, replicas: 3, output_field: t}", "add vote",
        "{name: a, expect: {label: label}, replicas: 3, output_field: t, vote: t}",
    ),
    Case(
        "{name: a, tools: [http_get]}", "tools: {http_get: {allow: [example.com]}}",
        "{name: a, tools: {http_get: {allow: [example.com]}}}",
    ),
    Case(
        "{name: f, incomplete: fail, " + FUNCTION + "}", "add group_by, or remove incomplete",
        "{name: f, group_by: topic, incomplete: fail, " + FUNCTION + "}",
    ),
    Case("{name: d, dedupe: topic, reduce: {max_rows: 3}}", "remove reduce, or move it", "{name: d, dedupe: topic}"),
]  # fmt: skip

TOOLS = '''\
def total(rows):
    return {"topic": rows[0]["topic"]}


def parts(row):
    return {"parts": row["topic"].split()}


def look(word: str) -> str:
    """Looks a word up."""
    return word
'''


def problems_of(project: ProjectFolder, stages: str, more: str) -> tuple[int, str]:
    head = "input: {path: data/rows.csv, id_field: id}\n"
    project.write("workflows/w.yml", f"{head}{more}stages:\n  - {stages}\n")
    ran = project.agac("validate", "-a", "w")
    return ran.code, ran.out + ran.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.said[:40])
def test_a_workflow_that_follows_the_advice_of_a_refusal_is_valid(project: ProjectFolder, case: Any) -> None:
    project.configure()
    row = {"id": "1", "topic": "tea", "label": "x", "a.b": "1", "rows_count": "2"}
    project.rows([row])
    project.write("tools/sums.py", TOOLS)
    project.write("agentcards/plain.md", "---\n---\nText.\n")
    for path, text in case.files.items():
        project.write(path, text)
    code, text = problems_of(project, case.before, case.more[0])
    assert code == 2, text
    assert case.said in text
    code, text = problems_of(project, case.after, case.more[1])
    assert code == 0, text
