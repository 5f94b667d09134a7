"""The mistakes that people make most, each made for real, with what agac says to it.

A mistake spoils a project that works, on the embedded simulator, and has a command that shows it. What that prints is
pinned in tests/behaviour/error_texts and shown in docs/reference/errors.md.
"""

import re
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
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
    """A project in which something is about to go wrong, and nothing is yet. `servers` are its simulators."""

    project: ProjectFolder
    servers: ExitStack
    env: dict[str, str] = field(default_factory=dict)
    served: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path, text in HEADS.items():
            self.project.write(path, text)

    def change(self, path: str, old: str, new: str) -> None:
        """Another text at one place of a file."""
        text = (self.project.root / path).read_text("utf-8")
        assert text.count(old) == 1, (path, old)
        self.project.write(path, text.replace(old, new))

    def serve(self, fault: dict[str, Any], **provider: Any) -> None:
        """The provider `acme`, which does this wrong."""
        folder = self.project.root.parent / "faults"
        server = self.servers.enter_context(simulator(faults=[fault], folder=folder))
        self.served.append(server)
        self.acme(server.base_url, **provider)

    def acme(self, base_url: str, **provider: Any) -> None:
        more = "".join(f"    {key}: {value}\n" for key, value in provider.items())
        self.project.write(
            "agac.yml",
            f"providers:\n  acme:\n    dialect: openai-chat\n    base_url: {base_url}\n    structured: json_schema\n"
            f"{more}defaults: {{model: acme/small}}\n",
        )


Spoil = Callable[[Spoilt], object]


def edit(old: str, new: str, path: str = "workflows/reviews.yml") -> Spoil:
    """Another text at one place of a file."""
    return lambda p: p.change(path, old, new)


def written(path: str, text: str) -> Spoil:
    """A file with another text."""
    return lambda p: p.project.write(path, text)


def serving(**fault: Any) -> Spoil:
    """A provider that does this wrong."""
    return lambda p: p.serve(fault)


def no_batches(p: Spoilt) -> None:
    p.acme("http://127.0.0.1:8000/v1")
    p.change("workflows/reviews.yml", "stages:\n", "defaults: {run_mode: batch}\nstages:\n")


def wrong_key(p: Spoilt) -> None:
    p.serve({"kind": "unauthorized"}, api_key="${ACME_API_KEY}")
    p.env["ACME_API_KEY"] = "sk-expired-0123456789"


def unreachable(p: Spoilt) -> None:
    closed = p.servers.enter_context(socket.socket())
    closed.bind(("127.0.0.1", 0))
    p.env["AGAC_TEST_BACK_OFF"] = "0.01"
    p.acme(f"http://127.0.0.1:{closed.getsockname()[1]}/v1")


def other_encoding(p: Spoilt) -> None:
    (p.project.root / "data/reviews.csv").write_bytes(ROWS.replace("Nice light", "Größer als gedacht").encode("cp1252"))


def second_process(p: Spoilt) -> None:
    p.serve({"kind": "hang"})
    holder = p.project.start(*RUN)
    p.servers.callback(kill, holder)
    wait_until(lambda: p.served[0].account()["in_flight"] == 3, "its calls hang", holder)


def full_disk(p: Spoilt) -> None:
    p.project.numbered(1, product="Tent")
    p.env |= little_room(8)


def newer_database(p: Spoilt) -> None:
    p.project.agac(*RUN)
    with closing(sqlite3.connect(p.project.root / ".agac/agac.db")) as database:
        database.execute("PRAGMA user_version = 999")


def unknown_card(p: Spoilt) -> None:
    p.project.write("agentcards/support.md", "---\nmodel: simulator/small\n---\nBe kind.\n")
    p.change("workflows/reviews.yml", NEEDS, f"{NEEDS}    agent: suport\n")


def nearly_all_fail(p: Spoilt) -> None:
    p.project.write("data/reviews.csv", "id,product,review\n" + "".join(f"r-{i},Tent,Text {i}\n" for i in range(1, 61)))
    p.serve({"kind": "refusal"})


def a_run(p: Spoilt) -> None:
    p.project.agac(*RUN)


def nothing(p: Spoilt) -> None:
    """The command alone is the mistake."""


VALIDATE, RUN = ("validate",), ("run", "-a", "reviews")
ONE_BY_ONE = (*RUN, "--concurrency", "1")
NEEDS = "    needs: classify\n"
SCHEMA_FILE = "schemas/sentiment.json"
TOO_LONG = "This model takes 8192 tokens at most. Your messages have 9120."

MISTAKES: dict[str, dict[str, tuple[str, Spoil, tuple[str, ...]]]] = {
    "files": {
        "misspelt-key": ("A key is misspelt", edit('    prompt: "Review of', '    promt: "Review of'), VALIDATE),
        "key-twice": ("A key stands there twice", edit(NEEDS, f'{NEEDS}    prompt: "Say thanks"\n'), VALIDATE),
        "tab": ("YAML is indented with a tab", edit(NEEDS, "\tneeds: classify\n"), VALIDATE),
        "indentation": ("YAML is indented by one blank too many", edit(NEEDS, f" {NEEDS}"), VALIDATE),
        "unknown-field": ("A prompt names a field that the rows lack", edit("${product}", "${produkt}"), VALIDATE),
        "other-placeholders": ("Placeholders are written as elsewhere: {{review}}, {product} or $product",
            edit("${product}: ${review}", "{product}: {{review}} $product"), VALIDATE),
        "unknown-needs": ("A stage needs one that is not there", edit("needs: classify", "needs: clasify"), VALIDATE),
        "wrong-order": ("Stages need each other in a circle",
            edit("  - name: classify\n", "  - name: classify\n    needs: reply\n"), VALIDATE),
        "unknown-card": ("No AgentCard has that name", unknown_card, VALIDATE),
        "bad-duration": ("A duration is not one", edit(NEEDS, f"{NEEDS}    max_age: 5 minutes\n"), VALIDATE),
        "broken-schema": ("A JSON Schema is none", edit('{"type": "string"}', '{"type": "text"}', SCHEMA_FILE),
            VALIDATE),
        "broken-json": ("A schema file is no JSON",
            edit('"required": ["sentiment"]', '"required": ["sentiment"],', SCHEMA_FILE), VALIDATE),
    },
    "rows": {
        "missing-input": ("The input file is not there", edit("data/reviews.csv", "data/review.csv"), VALIDATE),
        "semicolons": ("A csv is separated by semicolons", written("data/reviews.csv", ROWS.replace(",", ";")),
            VALIDATE),
        "other-encoding": ("A csv is not UTF-8", other_encoding, RUN),
        "missing-id-column": ("The column of ids is not there", edit("id_field: id", "id_field: review_id"), VALIDATE),
        "repeated-id": ("Two rows have the same id", edit("r-3", "r-1", "data/reviews.csv"), RUN),
    },
    "models": {
        "no-model": ("No model is named anywhere", written("agac.yml", ""), VALIDATE),
        "model-without-provider": ("A model is named without its provider",
            written("agac.yml", "defaults: {model: mistral-of-ours}\n"), VALIDATE),
        "unknown-provider": ("No provider has that name",
            written("agac.yml", "defaults: {model: opnai/gpt-5.4-mini}\n"), VALIDATE),
        "no-batches": ("Batches of a provider that has none", no_batches, VALIDATE),
        "missing-key": ("The API key is not set", written("agac.yml", "defaults: {model: openai/gpt-5.4-mini}\n"), RUN),
        "wrong-key": ("The provider refuses the API key (401)", wrong_key, ONE_BY_ONE),
        "no-money": ("The account has no money left (insufficient_quota)", serving(kind="quota"), ONE_BY_ONE),
        "unknown-model": ("The provider does not know the model (404)", serving(kind="not_found"), ONE_BY_ONE),
        "unreachable": ("Nobody listens at the provider's address", unreachable, (*RUN, "--limit", "1")),
        "rate-limited": ("The provider refuses calls for their rate",
            serving(kind="rate_limit", match="Broke at once", retry_after=0.01, in_ms=True), RUN),
        "context-too-long": ("A prompt is longer than the model takes",
            serving(kind="bad_request", match="Broke at once", code="context_length_exceeded", message=TOO_LONG), RUN),
        "wrong-answers": ("Answers are not what the schema asks for",
            serving(kind="wrong_schema", match="Broke at once"), RUN),
        "nearly-all-fail": ("Nearly everything fails alike", nearly_all_fail, ONE_BY_ONE),
    },
    "limits": {
        "budget-without-bound": ("A budget in dollars, and no max_tokens",
            edit("stages:\n", "budget: {usd: 5}\nstages:\n"), RUN),
        "budget-used-up": ("The budget is used up", nothing, (*RUN, "--budget", "calls=2", "--concurrency", "1")),
    },
    "machine": {
        "second-process": ("Another process works on the workflow", second_process, RUN),
        "output-in-the-way": ("The results cannot be written",
            written("output/reviews", "a file where the folder should be\n"), RUN),
        "full-disk": ("The disk is full", full_disk, RUN),
        "newer-database": ("The database was made by a newer agac", newer_database, RUN),
    },
    "command-line": {
        "no-project": ("The folder is in no project", lambda p: (p.project.root / "agac.yml").unlink(), RUN),
        "unknown-workflow": ("No workflow has that name", nothing, ("run", "-a", "review")),
        "unknown-stage": ("No stage has that name", nothing, (*RUN, "--stage", "clasify")),
        "unknown-run": ("No run has that number", a_run, ("status", "7")),
        "unknown-row": ("No row has that id", a_run, ("inspect", "last", "r-99")),
        "wrong-input-flag": ("--input names no file", nothing, (*RUN, "--input", "data/january.csv")),
        "wrong-variable": ("--var names no variable of the workflow",
            edit("stages:\n", "vars: {shop: Northwind}\nstages:\n"), (*RUN, "--var", "shpo=Contoso")),
        "unknown-command": ("No command has that name", nothing, ("rnu", "-a", "reviews")),
        "unknown-flag": ("No flag has that name", nothing, (*RUN, "--modell", "simulator/large")),
        "no-workflow-named": ("It is not said which workflow", nothing, ("run",)),
        "wrong-number": ("A flag's value is no number", nothing, (*RUN, "--limit", "ten")),
    },
}  # fmt: skip
"""Every mistake, by where it is made (a folder of pinned texts each) and by its file: what it is, how it is made in a
project that works, and the command that shows it."""


def shown(place: str, name: str, root: Path) -> str:
    """What the mistake is, then its command, what that prints and how it ends, as at a prompt."""
    title, spoil, words = MISTAKES[place][name]
    with ExitStack() as servers:
        spoilt = Spoilt(ProjectFolder(root), servers)
        spoil(spoilt)
        ran = subprocess.run(
            command(words), cwd=root, env=clean_environment(spoilt.env), timeout=120,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    said = steady(ran.stdout.decode(), root)
    return f"{title}\n\n$ agac {' '.join(words)}\n{said}exit code {ran.returncode}\n"


STEADY: Mapping[str, str] = {
    r"127\.0\.0\.1:\d+": "127.0.0.1:8000", r"process \d+": "process 4711",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-21T09:00:00Z", r"\[request [\w-]+\]": "[request req-1]",
    r"\d+ s ago": "1 s ago", r"this one knows \d+": "this one knows 4",
    r"(?m)^(.*\| [\d,.]+/s \||retrying: |elapsed \d).*\n": "",  # what a slow machine says on the way
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


def pinned() -> Iterator[tuple[str, str, Path]]:
    """Every mistake, by its place and name, with the file that holds its text."""
    for place, mistakes in MISTAKES.items():
        for name in mistakes:
            yield place, name, PINNED / place / f"{name}.txt"


def write() -> None:
    """Makes all files anew, from the program as it is."""
    with tempfile.TemporaryDirectory() as folder:
        for place, name, path in pinned():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(shown(place, name, Path(folder) / name / "shop"), encoding="utf-8")


if __name__ == "__main__":
    write()  # cd tests && python -m support.mistakes
