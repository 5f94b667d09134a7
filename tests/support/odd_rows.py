"""A project whose rows have ids and texts that pages, addresses and files could take for something else."""

import json

from support.canned import Answer, Talk, completion, serving
from support.project import ProjectFolder

SCRIPT = "<script>alert(1)</script>"
IDS = [
    "a/b?c=d&e#f",
    "../../../etc/passwd",
    SCRIPT,
    "\"double\" 'single'",
    "-dash",
    "שלום עולם",
    "=1+1",
    "long",
    "failing",
]
LONG = "word " * 2000
SHAPE = {"mood": "string", "note": "string"}


def run_odd_rows(project: ProjectFolder, *prompts: str) -> ProjectFolder:
    """Runs the workflow `reviews` over all of IDS, once with each of these prompts: two stages that ask, of which the
    second one passes a row over, and the first one fails for another. Gives the project."""
    rows = [{"id": one, "text": LONG if one == "long" else f"text of {one}"} for one in IDS]
    project.rows(rows, "data/rows.jsonl")
    reply = {"name": "reply", "needs": "judge", "prompt": "Reply: ${judge.note}", "when": 'id != "long"'}
    with serving(_answer) as address:
        project.configure(address)
        for prompt in prompts or ("One: ${text}",):
            judge = {"name": "judge", "prompt": prompt, "output_schema": SHAPE, "repair": 1}
            project.workflow(path="data/rows.jsonl", stages=[judge, reply])
            project.run()
    return project


def _answer(talk: Talk) -> Answer:
    """A note that is hostile; no JSON for the row that is to fail."""
    text = json.loads(talk.asked().body)["messages"][-1]["content"]
    answer = json.dumps({"mood": "good" if "Again" in text else "bad", "note": f"{SCRIPT} {text[:40]}"})
    failing = "failing" in text or "Your reply does not" in text
    return Answer(completion(f"no JSON {SCRIPT}" if failing else answer), headers={"content-type": "application/json"})
