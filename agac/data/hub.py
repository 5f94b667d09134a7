"""References to files of the Hugging Face Hub, and the files that they mean."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from agac.core.errors import listed
from agac.spec.inputs import format_of
from agac.spec.paths import Refused

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_KINDS = {"datasets": "dataset", "models": "model", "spaces": "space"}
HUB_FORM = (
    "write hf://datasets/OWNER/NAME/PATH@REVISION, or hf://OWNER/NAME/PATH for a file of a model"
)
_CONVERTED = "refs/convert/parquet"
"""The branch on which the hub keeps its own parquet files of a data set, as
CONFIG/SPLIT/0000.parquet (huggingface.co/docs/dataset-viewer/parquet, read November 2026)."""


_SPECIAL = re.compile(r"refs/(?:convert/\w+|pr/\d+)(?=/|\Z)")
"""Revisions of the hub with a `/` that need no `%2F`: nothing else can be meant (huggingface_hub's
HfFileSystem)."""


class HubReference(NamedTuple):
    """A file of a repository; or without `path` the rows of a data set, as the hub splits them or
    as they are there."""

    kind: str
    """dataset, model or space."""
    repo: str
    """The repository, as OWNER/NAME."""
    path: str
    """The file's path in the repository, or ""."""
    revision: str | None
    """A branch, a tag or a commit."""
    config: str | None = None
    """The configuration of a data set."""
    split: str | None = None
    """The split of a data set."""


def parse_hub(text: str) -> HubReference:
    """Parses a reference. A revision follows the repository or the path, with its `/` as `%2F`.
    Raises Refused."""
    body, _, query = text.removeprefix("hf://").partition("?")
    parts = body.rstrip("/").split("/")
    kind = _KINDS[parts.pop(0)] if parts[0] in _KINDS else "model"
    if not _names_repository(parts):
        raise Refused(f"{text} names nothing on the hub; {HUB_FORM}")
    owner, head, *rest = parts
    name, path, revision = _split_revision(head, "/".join(rest))
    choice = _choice_of_split(text, query)
    if choice and (path or kind != "dataset"):
        what = "config and split choose among the parquet files that the hub makes of a data set"
        raise Refused(f"{text}: {what}; leave out the path, or config and split")
    if not path and kind != "dataset":
        raise Refused(f"{text} names no file; {HUB_FORM}")
    return HubReference(kind, f"{owner}/{name}", unquote(path), unquote(revision) or None, **choice)


def _names_repository(parts: list[str]) -> bool:
    """True if the parts of a path begin with the owner and the name of a repository, and none
    leads out of it."""
    if len(parts) < 2 or not all(parts):
        return False
    return parts[0] != "buckets" and ".." not in map(unquote, parts)


def _split_revision(head: str, path: str) -> tuple[str, str, str]:
    """Splits the name of a repository and the path into the name, the path and the revision that
    follows one of them."""
    name, _, revision = head.partition("@")
    special = _SPECIAL.match(f"{revision}/{path}" if revision == "refs" else "")
    if special:
        path = f"{revision}/{path}"[special.end() + 1 :]
        revision = special[0]
    before, _, behind = path.rpartition("@")
    is_revision = "/" not in behind or _SPECIAL.fullmatch(behind)
    if not revision and before and is_revision:
        return name, before, behind
    return name, path, revision


def _choice_of_split(text: str, query: str) -> dict[str, str]:
    """Parses `config=NAME&split=NAME`, both of which may be missing. Raises Refused."""
    pairs = parse_qsl(query, keep_blank_values=True)
    choice = dict(pairs)
    is_repeated = len(choice) < len(pairs)
    if is_repeated or not all(choice.values()) or choice.keys() - {"config", "split"}:
        raise Refused(
            f"{text}: after the ? stand config=NAME and split=NAME, each once at most; correct it"
        )
    return choice


def hub_problem(error: Exception, reference: str, wanted: HubReference) -> str:
    """Says in words why the hub did not give what was wanted, with a remedy."""
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return f"{reference} names nothing on the hub; {HUB_FORM}"
    if isinstance(error, errors.RepositoryNotFoundError):  # also for one that needs a login
        remedy = "check its name, or set HF_TOKEN to a token that may read it"
        return f"{reference}: the hub has no such repository, or does not show it; {remedy}"
    if isinstance(error, errors.RevisionNotFoundError):
        if wanted.revision:
            missing = "has no such revision"
        else:
            missing = f"has made no parquet files ({_CONVERTED})"
        return f"{reference}: the hub {missing} of it; check it, or name a file"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{reference}: HF_HUB_OFFLINE is set; unset it, or name a file"
    response = getattr(error, "response", None)
    if response is None:
        reason = f"{type(error).__name__}; check that the hub can be reached, and try again"
    else:
        reason = (
            f"the hub answered {response.status_code}; check the path and the revision, or try "
            "again later"
        )
    return f"{reference} cannot be fetched: {reason}"


def files_of_hub(hub: HfApi, wanted: HubReference, reference: str) -> tuple[str | None, list[Any]]:
    """Returns the commit and its files (`RepoFile`) that a reference means, in the order of their
    rows. Raises Refused."""
    if wanted.config is None and wanted.split is None:
        commit, files = _listing(hub, wanted, wanted.revision)
        rows = _files_of_rows(files, wanted, reference)
        if rows:
            return commit, rows
    commit, files = _listing(hub, wanted, wanted.revision or _CONVERTED)
    return commit, _files_of_split(files, wanted, reference)


def _listing(
    hub: HfApi, wanted: HubReference, revision: str | None
) -> tuple[str | None, list[Any]]:
    """Lists the files of a revision, or the one that is wanted, in the order of their paths."""
    commit = hub.repo_info(wanted.repo, repo_type=wanted.kind, revision=revision).sha
    options: dict[str, Any] = {"repo_type": wanted.kind, "revision": commit}
    entries: Iterable[Any]
    if wanted.path:
        entries = hub.get_paths_info(wanted.repo, [wanted.path], **options)
    else:
        entries = hub.list_repo_tree(wanted.repo, recursive=True, **options)
    files = [entry for entry in entries if hasattr(entry, "blob_id")]
    return commit, sorted(files, key=lambda file: file.path)


def _files_of_rows(files: list[Any], wanted: HubReference, reference: str) -> list[Any]:
    """Returns the only file of rows, or none. Raises Refused if there are several, or not the one
    that is named."""
    if wanted.path:
        if not files:
            raise Refused(
                f"{reference}: the repository has no such file; check the path and the revision"
            )
        rows = files
    else:
        rows = [file for file in files if format_of(file.path) not in (None, "json", "txt")]
    if len(rows) > 1:
        some = ", ".join([file.path for file in rows[:5]] + ["…"] * (len(rows) > 5))
        raise Refused(
            f"{reference} has {len(rows)} files of rows ({some}); name one, or add ?split=NAME"
        )
    return rows


def _files_of_split(files: list[Any], wanted: HubReference, reference: str) -> list[Any]:
    """Returns the parquet files of the only split that fits a reference. Raises Refused."""
    splits: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for file in files:
        config, split, *name = file.path.split("/", 2) + [""] * 2
        if format_of(name[0]) == "parquet":
            splits[config, split].append(file)
    if not splits:
        raise Refused(
            f"{reference}: no splits are there; leave out config and split, or name a commit "
            f"of {_CONVERTED}"
        )
    fitting = [
        (config, split)
        for config, split in splits
        if wanted.config in (None, config) and wanted.split in (None, split)
    ]
    if len(fitting) != 1:
        choices = listed(f"?config={config}&split={split}" for config, split in fitting or splits)
        part = ""
        if "partial-" in choices:
            part = (
                "; a partial- split is the beginning of one: name the files of the repository "
                "instead"
            )
        raise Refused(f"{reference} means {len(fitting)} splits; write one of {choices}{part}")
    return splits[fitting[0]]
