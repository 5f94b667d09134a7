"""The mistakes that people make most, each made for real, with what agac says to it.

A mistake is a function that spoils a project that works and gives the commands that show it. What they print is pinned
in tests/behaviour/error_texts and shown in docs/reference/errors.md.
"""

import re
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.processes import little_room, wait_until
from support.project import ProjectFolder, clean_environment, command, kill
from support.server import Server, simulator

PINNED = Path(__file__).resolve().parents[1] / "behaviour" / "error_texts"

WORKFLOW = """\
input: {path: data/reviews.csv, id_field: id}
stages:
  - name: classify
    prompt: "Review of ${product}: ${review}"
    output_schema: schemas/sentiment.json
  - name: reply
    needs: classify
    prompt: "Answer this ${classify.sentiment} review: ${review}"
"""
ROWS = "id,product,review\nr-1,Tent,Kept me dry\nr-2,Stove,Broke at once\nr-3,Lamp,Nice light\n"
SCHEMA = '{\n  "type": "object",\n  "properties": {"sentiment": {"type": "string"}},\n  "required": ["sentiment"]\n}\n'
HEADS = {"workflows/reviews.yml": WORKFLOW, "data/reviews.csv": ROWS, "schemas/sentiment.json": SCHEMA}


@dataclass
class Spoilt:
    """A project in which something is about to go wrong. `servers` are its simulators."""

    project: ProjectFolder
    servers: ExitStack
    env: dict[str, str] = field(default_factory=dict)
    served: list[Server] = field(default_factory=list)

    def begin(self) -> None:
        """A project in which nothing is wrong yet."""
        for path, text in HEADS.items():
            self.project.write(path, text)

    def change(self, path: str, old: str, new: str) -> None:
        """Another text at one place of a file."""
        text = (self.project.root / path).read_text("utf-8")
        assert text.count(old) == 1, (path, old)
        self.project.write(path, text.replace(old, new))

    def workflow(self, old: str, new: str) -> None:
        self.change("workflows/reviews.yml", old, new)

    def serve(self, *faults: dict[str, Any], flags: tuple[str, ...] = (), **provider: Any) -> None:
        """The provider `acme`, which does these things wrong."""
        folder = self.project.root.parent / "faults"
        server = self.servers.enter_context(simulator(*flags, faults=list(faults), folder=folder))
        self.served.append(server)
        self.acme(server.base_url, **provider)

    def acme(self, base_url: str, **provider: Any) -> None:
        more = "".join(f"    {key}: {value}\n" for key, value in provider.items())
        self.project.write(
            "agac.yml",
            f"providers:\n  acme:\n    dialect: openai-chat\n    base_url: {base_url}\n    structured: json_schema\n"
            f"{more}defaults: {{model: acme/small}}\n",
        )


Made = Iterator[tuple[str, ...]]
Mistake = Callable[[Spoilt], Made]
VALIDATE, RUN = ("validate",), ("run", "-a", "reviews")


def misspelt_key(p: Spoilt) -> Made:
    """A key is misspelt"""
    p.workflow('    prompt: "Review of', '    promt: "Review of')
    yield VALIDATE


def key_twice(p: Spoilt) -> Made:
    """A key stands there twice"""
    p.workflow("    needs: classify\n", '    needs: classify\n    prompt: "Say thanks"\n')
    yield VALIDATE


def tab(p: Spoilt) -> Made:
    """YAML is indented with a tab"""
    p.workflow("    needs: classify\n", "\tneeds: classify\n")
    yield VALIDATE


def indentation(p: Spoilt) -> Made:
    """YAML is indented by one blank too many"""
    p.workflow("    needs: classify\n", "     needs: classify\n")
    yield VALIDATE


def missing_input(p: Spoilt) -> Made:
    """The input file is not there"""
    p.workflow("data/reviews.csv", "data/review.csv")
    yield VALIDATE


def unknown_field(p: Spoilt) -> Made:
    """A prompt names a field that the rows lack"""
    p.workflow("${product}", "${produkt}")
    yield VALIDATE


def other_placeholders(p: Spoilt) -> Made:
    """Placeholders are written as elsewhere: {{review}} or {product}"""
    p.workflow("${product}: ${review}", "{product}: {{review}}")
    yield VALIDATE


def unknown_provider(p: Spoilt) -> Made:
    """No provider has that name"""
    p.project.write("agac.yml", "defaults: {model: opnai/gpt-5.4-mini}\n")
    yield VALIDATE


def model_without_provider(p: Spoilt) -> Made:
    """A model is named without its provider"""
    p.project.write("agac.yml", "defaults: {model: mistral-of-ours}\n")
    yield VALIDATE


def no_model(p: Spoilt) -> Made:
    """No model is named anywhere"""
    p.project.write("agac.yml", "")
    yield VALIDATE


def no_batches(p: Spoilt) -> Made:
    """Batches of a provider that has none"""
    p.acme("http://127.0.0.1:8000/v1")
    p.workflow("stages:\n", "defaults: {run_mode: batch}\nstages:\n")
    yield VALIDATE


def missing_key(p: Spoilt) -> Made:
    """The API key is not set"""
    p.project.write("agac.yml", "defaults: {model: openai/gpt-5.4-mini}\n")
    yield RUN


def wrong_key(p: Spoilt) -> Made:
    """The provider refuses the API key (401)"""
    p.serve({"kind": "unauthorized"}, api_key="${ACME_API_KEY}")
    p.env["ACME_API_KEY"] = "sk-expired-0123456789"
    yield (*RUN, "--concurrency", "1")


def no_money(p: Spoilt) -> Made:
    """The account has no money left (insufficient_quota)"""
    p.serve({"kind": "quota"})
    yield (*RUN, "--concurrency", "1")


def unreachable(p: Spoilt) -> Made:
    """Nobody listens at the provider's address"""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        p.acme(f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        yield (*RUN, "--limit", "1")


def unknown_model(p: Spoilt) -> Made:
    """The provider does not know the model (404)"""
    p.serve({"kind": "not_found"})
    yield (*RUN, "--concurrency", "1")


def context_too_long(p: Spoilt) -> Made:
    """A prompt is longer than the model takes"""
    p.serve({"kind": "bad_request", "match": "Broke at once", "code": "context_length_exceeded",
             "message": "This model takes 8192 tokens at most. Your messages have 9120."})  # fmt: skip
    yield RUN


def semicolons(p: Spoilt) -> Made:
    """A csv is separated by semicolons"""
    p.project.write("data/reviews.csv", ROWS.replace(",", ";"))
    yield VALIDATE


def other_encoding(p: Spoilt) -> Made:
    """A csv is not UTF-8"""
    (p.project.root / "data/reviews.csv").write_bytes(ROWS.replace("Nice light", "Größer als gedacht").encode("cp1252"))
    yield RUN


def missing_id_column(p: Spoilt) -> Made:
    """The column of ids is not there"""
    p.workflow("id_field: id", "id_field: review_id")
    yield VALIDATE


def repeated_id(p: Spoilt) -> Made:
    """Two rows have the same id"""
    p.change("data/reviews.csv", "r-3", "r-1")
    yield RUN


def broken_schema(p: Spoilt) -> Made:
    """A JSON Schema is none"""
    p.change("schemas/sentiment.json", '{"type": "string"}', '{"type": "text"}')
    yield VALIDATE


def broken_json(p: Spoilt) -> Made:
    """A schema file is no JSON"""
    p.change("schemas/sentiment.json", '"required": ["sentiment"]', '"required": ["sentiment"],')
    yield VALIDATE


def wrong_answers(p: Spoilt) -> Made:
    """Answers are not what the schema asks for"""
    p.serve({"kind": "wrong_schema", "match": "Broke at once"})
    yield RUN


def budget_without_bound(p: Spoilt) -> Made:
    """A budget in dollars, and no max_tokens"""
    p.workflow("stages:\n", "budget: {usd: 5}\nstages:\n")
    yield RUN


def budget_used_up(p: Spoilt) -> Made:
    """The budget is used up"""
    yield (*RUN, "--budget", "calls=2", "--concurrency", "1")


def second_process(p: Spoilt) -> Made:
    """Another process works on the workflow"""
    p.serve({"kind": "hang"})
    holder = p.project.start(*RUN)
    try:
        wait_until(lambda: p.served[0].account()["in_flight"] == 3, "its calls hang", holder)
        yield RUN
    finally:
        kill(holder)


def output_in_the_way(p: Spoilt) -> Made:
    """The results cannot be written"""
    p.project.write("output/reviews", "a file where the folder should be\n")
    yield RUN


def full_disk(p: Spoilt) -> Made:
    """The disk is full"""
    p.project.numbered(1, product="Tent")
    p.env |= little_room(8)
    yield RUN


def newer_database(p: Spoilt) -> Made:
    """The database was made by a newer agac"""
    p.project.agac(*RUN)
    with sqlite3.connect(p.project.root / ".agac/agac.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    yield RUN


def no_project(p: Spoilt) -> Made:
    """The folder is in no project"""
    (p.project.root / "agac.yml").unlink()
    yield RUN


def unknown_workflow(p: Spoilt) -> Made:
    """No workflow has that name"""
    yield "run", "-a", "review"


def unknown_stage(p: Spoilt) -> Made:
    """No stage has that name"""
    yield (*RUN, "--stage", "clasify")


def unknown_run(p: Spoilt) -> Made:
    """No run has that number"""
    p.project.agac(*RUN)
    yield "status", "7"


def unknown_row(p: Spoilt) -> Made:
    """No row has that id"""
    p.project.agac(*RUN)
    yield "inspect", "last", "r-99"


def wrong_input_flag(p: Spoilt) -> Made:
    """--input names no file"""
    yield (*RUN, "--input", "data/january.csv")


def bad_duration(p: Spoilt) -> Made:
    """A duration is not one"""
    p.workflow("    needs: classify\n", "    needs: classify\n    max_age: 5 minutes\n")
    yield VALIDATE


def unknown_card(p: Spoilt) -> Made:
    """No AgentCard has that name"""
    p.project.write("agentcards/support.md", "---\nmodel: simulator/small\n---\nBe kind.\n")
    p.workflow("    needs: classify\n", "    needs: classify\n    agent: suport\n")
    yield VALIDATE


def unknown_needs(p: Spoilt) -> Made:
    """A stage needs one that is not there"""
    p.workflow("needs: classify", "needs: clasify")
    yield VALIDATE


def wrong_order(p: Spoilt) -> Made:
    """Stages need each other in a circle"""
    p.workflow("  - name: classify\n", "  - name: classify\n    needs: reply\n")
    yield VALIDATE


def rate_limited(p: Spoilt) -> Made:
    """The provider refuses calls for their rate"""
    p.serve({"kind": "rate_limit", "match": "Broke at once", "retry_after": 0.01, "in_ms": True})
    yield RUN


def nearly_all_fail(p: Spoilt) -> Made:
    """Nearly everything fails alike"""
    p.project.write("data/reviews.csv", "id,product,review\n" + "".join(f"r-{i},Tent,Text {i}\n" for i in range(1, 61)))
    p.serve({"kind": "refusal"})
    yield (*RUN, "--concurrency", "1")


def unknown_command(p: Spoilt) -> Made:
    """No command has that name"""
    yield "rnu", "-a", "reviews"


def unknown_flag(p: Spoilt) -> Made:
    """No flag has that name"""
    yield (*RUN, "--modell", "simulator/large")


def no_workflow_named(p: Spoilt) -> Made:
    """It is not said which workflow"""
    yield ("run",)


def wrong_number(p: Spoilt) -> Made:
    """A flag's value is no number"""
    yield (*RUN, "--limit", "ten")


def wrong_variable(p: Spoilt) -> Made:
    """--var names no variable of the workflow"""
    p.workflow("stages:\n", "vars: {shop: Northwind}\nstages:\n")
    yield (*RUN, "--var", "shpo=Contoso")


MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "files": (
        misspelt_key, key_twice, tab, indentation, unknown_field, other_placeholders, unknown_needs, wrong_order,
        unknown_card, bad_duration, broken_schema, broken_json,
    ),
    "rows": (missing_input, semicolons, other_encoding, missing_id_column, repeated_id),
    "models": (
        no_model, model_without_provider, unknown_provider, no_batches, missing_key, wrong_key, no_money, unknown_model,
        unreachable, rate_limited, context_too_long, wrong_answers, nearly_all_fail,
    ),
    "limits": (budget_without_bound, budget_used_up),
    "machine": (second_process, output_in_the_way, full_disk, newer_database),
    "command line": (
        no_project, unknown_workflow, unknown_stage, unknown_run, unknown_row, wrong_input_flag, wrong_variable,
        unknown_command, unknown_flag, no_workflow_named, wrong_number,
    ),
}  # fmt: skip
"""Every mistake, by where it is made: a folder of pinned texts each."""


@contextmanager
def spoilt(root: Path) -> Iterator[Spoilt]:
    """A project that works, on the embedded simulator, until a mistake is made in it."""
    with ExitStack() as servers:
        place = Spoilt(ProjectFolder(root), servers)
        place.begin()
        yield place


def shown(mistake: Mistake, root: Path) -> str:
    """What the mistake is, then its commands, what they print and how they end, as at a prompt."""
    text = f"{mistake.__doc__}\n\n"
    with spoilt(root) as place:
        for words in mistake(place):
            ran = subprocess.run(
                command(words), cwd=root, env=clean_environment(place.env), timeout=120,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            text += f"$ agac {' '.join(words)}\n{steady(ran.stdout.decode(), root)}exit code {ran.returncode}\n"
    return text


STEADY: Mapping[str, str] = {
    r"127\.0\.0\.1:\d+": "127.0.0.1:8000", r"process \d+": "process 4711",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-21T09:00:00Z", r"\[request [\w-]+\]": "[request req-1]",
    r"\d+ s ago": "1 s ago", r"this one knows \d+": "this one knows 4",
}  # fmt: skip


def steady(text: str, root: Path) -> str:
    """The text with what differs from run to run made the same."""
    text = text.replace(str(root.resolve()), "/home/ann/shop").replace(socket.gethostname(), "laptop")
    text = re.sub(
        r"^Time per call: .*", lambda line: re.sub(r"(under )?[\d.]+ m?s\b", "5 ms", line[0]), text, flags=re.M
    )
    for pattern, word in STEADY.items():
        text = re.sub(pattern, word, text)
    return text


def pinned() -> Iterator[tuple[Mistake, Path]]:
    """Every mistake with the file that holds its text."""
    for place, mistakes in MISTAKES.items():
        for mistake in mistakes:
            yield mistake, PINNED / place.replace(" ", "-") / f"{mistake.__name__.replace('_', '-')}.txt"


def write() -> None:
    """Makes all files anew, from the program as it is."""
    with tempfile.TemporaryDirectory() as folder:
        for mistake, path in pinned():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(shown(mistake, Path(folder) / mistake.__name__ / "shop"), encoding="utf-8")


if __name__ == "__main__":
    write()  # cd tests && python -m support.mistakes
