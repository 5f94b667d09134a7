"""What `agac ci` is run for, by the variables of a forge's job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agac.core.errors import UsageError

Kind = Literal["pull-request", "merge", "schedule"]


class Event(NamedTuple):
    """What `agac ci` is run for. `base` is the commit that a change is for, or that a push came
    after, of the branch `into`; `head` the change's last one. `foreign`: it comes from another
    repository."""

    kind: Kind
    base: str | None = None
    head: str | None = None
    into: str | None = None
    foreign: bool = False


def event_of(env: Mapping[str, str], kind: Kind | None = None) -> Event:
    """What the forge says in its variables, and in GitHub's file; `kind` overrules it. Raises
    UsageError."""
    found = _github(env) if env.get("GITHUB_EVENT_NAME") else _gitlab(env)
    if kind is not None:
        if found is not None and found.kind == kind:
            return found
        return Event(kind)
    if found is None:
        said = env.get("GITHUB_EVENT_NAME") or env.get("CI_PIPELINE_SOURCE")
        if said:
            what = f"nothing is done for {said!r} of this branch"
        else:
            what = "no forge says what `agac ci` is run for"
        remedy = "Add --event pull-request, --event merge or --event schedule."
        raise UsageError(what, remedy=remedy)
    return found


def _github(env: Mapping[str, str]) -> Event | None:
    name = env["GITHUB_EVENT_NAME"]
    body = _github_body(env)
    if name == "schedule":
        return Event("schedule")
    if name == "pull_request_target":
        remedy = (
            "Use `on: pull_request`, and post the comment from a second job (`on: workflow_run`)."
        )
        raise UsageError(
            "pull_request_target runs what anybody wrote with your secrets", remedy=remedy
        )
    if name == "pull_request":
        base, head = (_at(body, "pull_request", one) or {} for one in ("base", "head"))
        ours, theirs = (_at(one, "repo", "full_name") for one in (base, head))
        return Event(
            "pull-request",
            base.get("sha"),
            head.get("sha"),
            base.get("ref"),
            not ours or ours != theirs,
        )
    default = _at(body, "repository", "default_branch")
    if name == "push" and default and _at(body, "ref") == f"refs/heads/{default}":
        return Event("merge", _before(_at(body, "before")), _at(body, "after"), default)
    return None


def _github_body(env: Mapping[str, str]) -> dict[str, Any]:
    """Reads the file in which GitHub describes the event to a job; empty if there is none. Raises
    UsageError."""
    file = Path(env.get("GITHUB_EVENT_PATH", ""))
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        remedy = "Unset it, and say with --event what is meant."
        raise UsageError(
            f"GITHUB_EVENT_PATH: {file} is no JSON object: {error}", remedy=remedy
        ) from None


def _at(body: Any, *keys: str) -> Any:
    for key in keys:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def _before(commit: str | None) -> str | None:
    return commit if commit and commit.strip("0") else None  # of a branch's first push it is nought


def _gitlab(env: Mapping[str, str]) -> Event | None:
    get, head = env.get, env.get("CI_COMMIT_SHA")
    match get("CI_PIPELINE_SOURCE"):
        case "merge_request_event":
            ours, theirs = (get(f"CI_MERGE_REQUEST_{one}PROJECT_ID") for one in ("", "SOURCE_"))
            base, into = (
                get(f"CI_MERGE_REQUEST_{one}") for one in ("DIFF_BASE_SHA", "TARGET_BRANCH_NAME")
            )
            # of a pipeline of the merged result
            head = get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or head
            return Event("pull-request", base, head, into, not ours or ours != theirs)
        case "push" if get("CI_COMMIT_BRANCH") == (default := get("CI_DEFAULT_BRANCH", "")):
            return Event("merge", _before(get("CI_COMMIT_BEFORE_SHA")), head, default)
        case "schedule":
            return Event("schedule")
    return None
