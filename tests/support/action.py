"""The action and GitLab's template: what they run, and how a runner runs it."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.commands import clean_environment, template
from support.forges import PROJECT, FakeForge, programs

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
GITLAB = ROOT / "docs/ci/gitlab.yml"
POST = "Comment on the pull request"
"""The step of the action that writes the comment."""


@cache
def read(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), yaml.BaseLoader)  # texts alone: `on` is no boolean


def steps(path: Path) -> list[Any]:
    if path == ACTION:
        return list(read(path)["runs"]["steps"])
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


Ended = subprocess.CompletedProcess[str]


def run_step(name: str, folder: Path, environment: dict[str, str], **inputs: str) -> Ended:
    """Runs a step of the action with bash; `inputs` are those that the job gives."""
    (step,) = (one for one in steps(ACTION) if one.get("name") == name)
    given = {key: one["default"] for key, one in read(ACTION)["inputs"].items()} | inputs

    def value(match: re.Match[str]) -> str:
        key, _, other = match[1].removeprefix("inputs.").partition(" || ")
        return given[key] or other.strip("'")

    env = {key: re.sub(r"\$\{\{ (.*?) \}\}", value, text) for key, text in step.get("env", {}).items()}
    assert not any("${{" in text for text in env.values())
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return _run(words, folder, {**environment, **env})


def run_job(name: str, folder: Path, environment: dict[str, str]) -> Ended:
    """Runs the script of a job of GitLab's template, whose lines become one script, with a plain shell."""
    job = read(GITLAB)[name]
    words = ["sh", "-e", "-c", "\n".join(job["script"])]
    return _run(words, folder, {**job.get("variables", {}), **environment})


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> Ended:
    path = f"{programs(folder.parent / 'programs')}:{template().typed}:{Path(sys.executable).parent}:/usr/bin:/bin"
    env = clean_environment({"CI": "true", **environment, "PATH": path})
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def post(at: FakeForge, folder: Path, event: Any = None) -> Ended:
    """Runs the step or the job that posts what `agac-pr.json` in the folder says, as it is configured by default."""
    if at.kind == "gitlab":
        return run_job("agac-comment", folder, at.environment())
    file = folder.parent / "event.json"
    file.write_text(json.dumps({"number": at.number} if event is None else event), encoding="utf-8")
    environment = at.environment() | {"GITHUB_EVENT_PATH": str(file)}
    return run_step(POST, folder, environment, token=at.token)


__all__ = ["ACTION", "GITLAB", "POST", "PROJECT", "ROOT", "Ended", "post", "read", "run_job", "run_step", "steps"]
