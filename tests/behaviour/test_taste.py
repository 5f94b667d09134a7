"""Habits of the code that a machine can watch."""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens

import pytest

import agac
import agac.api

PACKAGE = Path(agac.__file__).parent
OTHER_DATABASES = {
    "data/duckdb_files.py",
    "data/duckdb_values.py",
    "data/parquet.py",
    "data/postgres.py",
    "data/sql.py",
    "data/sqlite.py",
    "spec/database_urls.py",
    "simulator/batch_store.py",
}
"""Modules that speak to databases of which the store knows nothing: the user's, the simulator's."""
COUNTERPARTS = {"anthropic", "app", "batch", "batches", "ci", "compare", "diff", "export", "graph", "inspect",
                "monitor", "notify", "openai", "plan", "pool", "process", "project", "review", "run", "share",
                "show_data", "status", "why"}  # fmt: skip
"""Names of modules of one subject in several folders: a command and its function; a dialect and its simulation."""
DOCUMENTED = ("api/", "core/types.py", "core/errors.py", "core/keys.py")


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """The text and the tree of every module, by its path below agac/."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every tree, with the name of its module."""
    return [(name, node) for name, (_, tree) in modules().items() for node in ast.walk(tree)]


def test_the_public_names_are_these() -> None:
    assert agac.api.__all__ == [
        "AgacError", "AgentResult", "AgentRun", "BackupReport", "BatchReport", "Budget", "CalibrateReport",
        "CancelReport", "CardReport", "CheckReport", "ComparisonReport", "DataReport", "DecideReport",
        "Decision", "DiffReport", "DoctorReport", "Evaluation", "ExitCode", "FixReport", "GcReport",
        "GivenRows", "GraphReport", "InspectReport", "LeaseHeld", "LeaseLost", "LintReport",
        "LockReport", "McpServer", "MergeReport", "NotifyReport", "OpenCodeRuntime", "Phase", "PlanComparison",
        "PlanReport",
        "Problem", "ProcessOptions", "PullReport", "PushReport", "QueryAnswer", "Quote", "RemoteReport", "ResultRow",
        "RetrieveReport", "Retry", "RetryChoice", "ReviewItem", "ReviewPage", "ReviewReport", "RowCounts", "RowError",
        "RunComparison", "RunOptions", "RunReport", "RunSummary", "RunsReport", "SchemasReport", "ShardsReport", "Sink",
        "SpecError", "StageTrial", "StatusReport", "StoreCorrupt", "StoreError", "StoreOutdated", "StoreTooNew",
        "TaskKeys", "Tool", "TrialReport", "UsageError", "View", "WaitReport", "WebSource", "WhyReport",
        "Workflow", "WorkflowTestReport",
        "abatch_cancel", "abatch_list", "abatch_status", "abatch_wait", "acalibrate", "acompare", "acompare_runs",
        "adecide", "adiff", "adoctor", "aevaluate", "aexport", "afix", "agc", "agraph", "ainspect",
        "alock_card", "amap_reduce", "amerge", "anotify_test", "aplan", "aplan_against", "aprocess",
        "aprocess_plan", "apull", "apush", "aremote_doctor", "aresume", "aretrieve", "aretry", "aretry_choice",
        "areview_export", "areview_import", "areview_item", "areview_queue", "areview_report", "arun", "arun_tests",
        "aruns", "ashard_status", "ashow", "astatus", "astream", "atrial", "atry_card", "awhy", "backup",
        "batch_cancel", "batch_list", "batch_status", "batch_wait", "calibrate", "compare", "compare_runs", "decide",
        "diff", "doctor", "embedded_simulator", "evaluate", "examples", "export", "file_schema", "fix", "gc",
        "graph", "init", "inspect", "lint", "lock_card", "map_reduce", "merge", "notify_test", "plan",
        "plan_against", "process", "process_plan", "pull", "push", "ray_map", "read_job",
        "remote_doctor", "resume", "retrieve", "retry", "retry_choice", "review_export", "review_import", "review_item",
        "review_queue",
        "review_report", "reviewer", "row_ids", "run", "run_several", "run_tests", "runs", "save_drawing", "save_job",
        "shard_status", "show", "show_card", "show_data", "sql", "status", "stream", "tool", "trial", "try_card",
        "validate", "views", "why", "write_schemas",
    ]  # fmt: skip
    assert dir(agac) == sorted([*agac.api.__all__, "__version__"])
    for name in agac.api.__all__:
        assert getattr(agac, name) is getattr(agac.api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agac.nothing


def test_statements_stand_in_the_store_alone() -> None:
    statement = re.compile(
        r"\s*(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s|PRAGMA\s|BEGIN\b)"
    )
    assert [
        f"{name}:{node.lineno}: {node.value[:60]}"
        for name, node in nodes()
        if not name.startswith("store/") and name not in OTHER_DATABASES
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and statement.match(node.value)
    ] == []


def test_a_message_names_nothing_that_only_some_projects_have() -> None:
    prose = {id(node.value) for _, node in nodes() if isinstance(node, ast.Expr)}
    example = re.compile(r"\b(data|prompts|schemas|output|tools)/\w|\b(?<!agac\.)tools\.\w|\bclassify\b|\breviews\b")
    named = {
        (name, node.value)
        for name, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        if example.search(node.value) and not re.search(r"sqlite://data/out\.db", node.value)
    }
    keys = {"spec/models.py", "spec/rule_models.py", "spec/stage_models.py"}  # explained there
    assert {name for name, _ in named} == {*keys, "cli/project.py"}, named  # agac init
    assert [text for name, text in named if name == "cli/project.py"] == ["reviews"]


def test_classes_are_named_after_what_they_are() -> None:
    empty = re.compile(r".*(Manager|Service|Handler|Helper|Processor|Factory|Utils?)\Z")
    classes = ((name, node) for name, node in nodes() if isinstance(node, ast.ClassDef))
    assert [f"{name}:{node.lineno}: {node.name}" for name, node in classes if empty.match(node.name)] == []
    assert [name for name in modules() if re.search(r"(utils?|helpers?|misc|common)\.py\Z", name)] == []


def test_a_name_stands_for_one_thing() -> None:
    classes = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []
    files = Counter(Path(name).stem for name in modules() if not name.endswith("__.py"))
    assert {name for name, count in files.items() if count > 1} == COUNTERPARTS


NOUN_FIRST = re.compile(r"(What|Who|Whose|Whether|How|Where|Which|When|Why|That)\b")
"""How a docstring begins that names a noun instead of saying what is done."""

OLD_WORDS = re.compile(r"\b(nobody knows|nobody|stands?|beside|goes on|go on|anew|is told|are told|whoever)\b")
"""Words of an old English, where `unknown`, `next to`, `continues`, `again` and `is logged` are meant."""

STILL_NOUN_FIRST = {
    "spec": 64, "api": 61, "engine/forecast": 46, "providers": 17, "engine": 16, "plan": 14, "store": 12, "data": 11,
    "engine/walk": 9, "engine/ask": 7, "tools": 6, "core": 6, "engine/decide": 4, "engine/sharding": 1,
}  # fmt: skip
"""Docstrings of classes and functions that begin so, by folder. The numbers may only become smaller."""

STILL_OLD_WORDS = {
    "spec": 71, "api": 22, "providers": 19, "engine/forecast": 17, "data": 15, "store": 13, "tools": 8, "engine": 6,
    "engine/decide": 6, "engine/walk": 5, "engine/ask": 4, "plan": 4, "engine/workers": 3, "simulator": 3,
    "engine/sharding": 2, "engine/batch": 2, "": 1, "cli": 1, "core": 1,
}  # fmt: skip
"""Old words in docstrings and comments, by folder. The numbers may only become smaller."""


def test_docstrings_say_what_is_done_in_plain_words() -> None:
    nouns, words = Counter[str](), Counter[str]()
    for name, (text, tree) in modules().items():
        folder = name.rpartition("/")[0]
        prose = [token.string for token in generate_tokens(StringIO(text).readline) if token.type == COMMENT]
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                docstring = ast.get_docstring(node) or ""
                prose.append(docstring)
                nouns[folder] += not isinstance(node, ast.Module) and bool(NOUN_FIRST.match(docstring))
        words[folder] += sum(len(OLD_WORDS.findall(text)) for text in prose)
    assert {folder: n for folder, n in nouns.items() if n > STILL_NOUN_FIRST.get(folder, 0)} == {}
    assert {folder: n for folder, n in words.items() if n > STILL_OLD_WORDS.get(folder, 0)} == {}


def undocumented(name: str, members: Iterable[ast.AST]) -> list[str]:
    """Public classes and functions without a docstring. A property of a protocol is data: its class says what it is."""
    return [
        f"{name}:{node.lineno}: {node.name}"
        for node in members
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]


def test_everything_public_of_the_api_and_the_shared_types_is_documented() -> None:
    for name, (_, tree) in modules().items():
        if name.startswith(DOCUMENTED):
            classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
            assert ast.get_docstring(tree)
            assert undocumented(name, [*tree.body, *(member for node in classes for member in node.body)]) == []


def test_a_protocol_says_what_its_members_promise() -> None:
    for name, node in nodes():
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
            promised = [
                one for one in node.body if "property" not in map(ast.unparse, getattr(one, "decorator_list", ()))
            ]
            assert undocumented(name, [node, *promised]) == []


def test_modules_stay_readable() -> None:
    assert [name for name, (text, tree) in modules().items() if text.strip() and not ast.get_docstring(tree)] == []
    assert [name for name, (text, _) in modules().items() if len(text.split("\n")) > 601] == []


def imported() -> dict[str, set[str]]:
    """The modules that each module imports: for types, and within functions, too."""
    paths = {name.removesuffix("/__init__.py").removesuffix(".py"): name for name in modules()}
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for name, node in nodes():
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            base = node.module.removeprefix("agac").replace(".", "/").lstrip("/")
            for one in node.names:
                path = paths.get(f"{base}/{one.name}".lstrip("/")) or paths.get(base)
                found[name] |= {path} - {None, name} if path else set()
    return found


def test_modules_can_be_read_one_before_the_other() -> None:
    """No two modules need each other, not even for types."""
    imports = imported()

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = [*imports[name]]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += imports[one]
        return seen

    all_reached = {name: reached(name) for name in imports}
    assert "engine/ask/caller.py" in all_reached["cli/run.py"]
    knotted = {name: {one for one in seen if name in all_reached[one]} for name, seen in all_reached.items()}
    assert [sorted(knot) for knot in knotted.values() if knot] == []


OPENERS = {"read_text", "read_bytes", "write_text", "write_bytes", "open", "iterdir", "glob", "rglob", "scandir",
           "copytree"}  # fmt: skip
OPENED_OTHERWISE: dict[str, tuple[set[str], str]] = {
    "api/__init__.py": ({"Path(__file__).read_text"}, "its own source"),
    "api/bugs.py": ({"report.write_text"}, "a new folder for temporary files"),
    "api/ci_events.py": ({"file.read_bytes"}, "the forge names it in a variable"),
    "api/findings.py": ({"path.read_bytes"}, "a user types it"),
    "api/trace_files.py": ({"folder.iterdir"}, "a user types it"),
    "api/ended_rows.py": ({"path.open"}, "OUTPUT, which a user types"),
    "api/new_project.py": ({"(root / f'agentcards/{name}.md').read_text",
                            "(root / f'workflows/{example}.yml').read_text", "folder.glob", "path.read_text",
                            "root.glob", "source.read_bytes", "target.read_bytes", "targets[path].write_bytes",
                            "template.rglob"},
                           "the examples of the package; where they are written was looked at with `real_path`"),
    "api/adoption.py": ({"(job.root / job.output).open"}, "OUTPUT, which a user types"),
    "api/ready_workflow.py": ({"folder.iterdir"}, "inputs that agac kept"),
    "api/status.py": ({"(root / SHARDS).glob", "(state / SHARDS.name).glob",
                       "(root / record.output_dir / 'summary.json').read_bytes"},
                      "the state folder, and what agac wrote"),
    "data/files.py": ({"file.open", "os.open", "os.scandir"}, "outputs, and temporary files beside them"),
    "data/object_store.py": ({"open", "os.open", "os.scandir"}, "a remote, which a user names"),
    "data/own_files.py": ({"os.open", "table.read_text"}, "files of this machine, with their owners"),
    "data/remote.py": ({"(root / FOLDER).glob", "kept.temporary.open", "path.open", "self._index(reference).read_text"},
                       "what agac fetched and keeps"),
    "data/sources.py": ({"folder.glob", "path.open"}, "inputs that agac kept, or that were looked at"),
    "data/sql.py": ({"folder.glob"}, "what agac spilled"),
    "data/sqlite.py": ({"path.open"}, "an output's database, which was looked at"),
    "spec/agent_cards.py": ({"place.iterdir"}, "a user types it"),
    "spec/git.py": ({"git.open", "target.open"}, "git's own files, and files of a commit in a new folder"),
    "spec/inputs.py": ({"path.glob"}, "the suffix of a file in a folder that was looked at"),
    "spec/paths.py": ({"folder.iterdir", "link.read_text", "open", "os.scandir"},
                      "the state folder, and names in folders whose links were followed"),
    "tools/builtin.py": ({"file.iterdir"}, "names in a folder whose links were followed"),
    "tools/mcp.py": ({"session.open"}, "no file"),
    "tools/pool.py": ({"record.open"}, "results of tools, in a place that was looked at"),
    "tools/processes.py": ({"file.open", "file.read_text", "os.open"}, "what a process prints, in the state folder"),
}  # fmt: skip
"""What else opens files, by module, and why that is none of what a project's files name or its folders hold."""


def test_files_of_a_project_are_opened_by_one_module_alone() -> None:
    found: dict[str, set[str]] = {}
    for name, node in nodes():
        if name.startswith(("spec/", "api/", "tools/", "data/")) and name != "spec/project_files.py":
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                found.setdefault(name, set()).add("open")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OPENERS:
                found.setdefault(name, set()).add(ast.unparse(node.func))
    assert found == {name: calls for name, (calls, _) in OPENED_OTHERWISE.items()}


SPLIT_OTHERWISE = {"data/text_formats.py": "bytes, which are cut at CR and LF alone"}
"""What calls `splitlines`, by module, and why it may."""


def test_lines_are_not_cut_inside_of_texts() -> None:
    """`splitlines` of a text cuts at U+2028, U+0085, form feeds and others, which a text in JSON holds as they are."""
    found = {name for name, node in nodes() if isinstance(node, ast.Attribute) and node.attr == "splitlines"}
    assert found == set(SPLIT_OTHERWISE)


def test_a_time_limit_does_not_swallow_a_ctrl_c() -> None:
    """`asyncio.wait_for` of Python 3.11 gives the result, and forgets that it was cancelled, where both come at once;
    `asyncio.timeout` does not."""
    assert [
        f"{name}:{node.lineno}"
        for name, node in nodes()
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
    ] == []


BY_KEY = re.compile(r'summary\["|\["rows"\]\["|report\["(rows|levels|stages|calls|errors)"\]')
"""How a fact of a summary is read by a key, which is a KeyError where the key is wrong."""

BY_KEY_IN_JSON = {"api/inspect.py"}
"""Modules that choose parts of a report in JSON, as one stage of it."""


def test_facts_of_a_summary_are_fields_of_records() -> None:
    assert {name for name, (text, _) in modules().items() if BY_KEY.search(text)} == BY_KEY_IN_JSON
