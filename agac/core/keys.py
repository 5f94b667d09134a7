"""Every id and hash that agac makes, and the order of ids. All are pure functions of content, read in one sitting."""

from __future__ import annotations

import json
import re
from base64 import b32encode
from collections.abc import Iterable, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from agac.core.types import RowId, json_encoder

if TYPE_CHECKING:
    from agac.core.types import JSONValue, Message, Params, Schema

# Hashes are 16 bytes of BLAKE2b over canonical JSON: enough for 10^7 tasks (the chance of any collision is below
# 10^-24), and half the index of a 32-byte digest.

FORMAT_VERSION = 1
"""Part of every fingerprint. Raising it asks every task again: only for a change in what a request means."""

DIGEST_BYTES = 16

canonical = json_encoder(sort_keys=True)
"""The one text of a JSON value: keys sorted, no spaces, not ASCII-escaped."""

snapshot = json_encoder()
"""A row's fields as the store keeps them and as exports show them: in the order of the input."""


def digest(text: str) -> bytes:
    """16 bytes that stand for `text`. Lone surrogates are kept apart from each other, not refused."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def bytes_digest(pieces: Iterable[bytes]) -> bytes:
    """The `digest` of the text that these bytes are as Latin-1, of which only a piece is held at a time."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        found.update(piece.decode("latin-1").encode())
    return found.digest()


def row_hash(data_json: str) -> bytes:
    """Stands for the content of a row. Takes the row's snapshot text, as it is stored, so that it is encoded once."""
    return digest(data_json)


def member_hash(row_id: RowId) -> int:
    """Where a member of a group stands among the others when they are reduced as a tree: 64 bits, unsigned, of the id
    alone, so that other members move nobody. Stored less 2**63: SQLite's integers are signed."""
    return int.from_bytes(digest(canonical(row_id))[:8], "big")


def shard_of(row_id: RowId, of: int) -> int:
    """In which of so many shards, from 1, a row or a group is: by its id alone, so that other rows move nobody."""
    return member_hash(row_id) % of + 1


def numbered_id(row_id: RowId, number: int) -> str:
    """The id of a row whose id came before (`on_duplicate_id: suffix`); `number` counts from 2."""
    return f"{row_id}#{number}"


def message_id(token: str, about: str, target: str) -> str:
    """Names a message about something in a store, which has this `token`, to a target: in each attempt the same."""
    return f"msg_{digest(canonical([token, about, target])).hex()}"


JOB = "job_"  # how the aliases of row runs begin


def job_name(stem: str, output: str, kind: str = "process") -> str:
    """A row run's name, by the path of its output; `stem` is for people. Of a task from Python, by all that it is."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9_]+', '-', stem)[:40].strip('-') or 'rows'}-{digest(output).hex()[:8]}"


def is_job(workflow: str) -> bool:
    """Whether a workflow's name is that of a row run."""
    return re.fullmatch(r"process-.+-[0-9a-f]{8}", workflow) is not None


def job_alias(run: int) -> str:
    """What a run of a job is called besides its number."""
    return f"{JOB}{run}"


def prefix_mark(
    lane: str, messages: Sequence[Message], agent: JSONValue, schema: Schema | None
) -> str:
    """Stands for what all requests of a stage to a model begin with."""
    said = [[one.role, one.text] for one in messages]
    return digest(canonical([lane, said, agent, schema and schema.body])).hex()[:16]


def definition_hash(body: JSONValue) -> bytes:
    """Stands for everything in a resolved workflow that can change a result."""
    return digest(canonical(body))


def params_body(params: Params) -> dict[str, Any]:
    """The parameters that are set, by name."""
    return {f.name: value for f in fields(params) if (value := getattr(params, f.name)) is not None}


def local_fingerprint(prints: bytes, given: JSONValue) -> bytes:
    """Stands for a task that asks no model: `prints` for what is done, `given`, in its order, is what it is done to."""
    return digest(f"{prints.hex()}:{snapshot(given)}")


def replicas_fingerprint(prints: Sequence[bytes], vote: JSONValue) -> bytes:
    """Stands for a task asked several times: its replicas' fingerprints in order, and what is made of their answers."""
    return digest(canonical(["replicas", vote, [one.hex() for one in prints]]))


def reuse_salt(reuse: str, row_id: RowId, run: int) -> str:
    """What keeps equal requests apart: nothing for `content`, the row for `row`, the row in this run for `never`."""
    if reuse == "content":
        return ""
    return json.dumps(row_id if reuse == "row" else [row_id, run])


class Fingerprinter:
    """Fingerprints of one stage's tasks: what all of them share is hashed once, what differs is hashed per task. In it:
    format version, provider, the stage's first model, parameters, schema, the agent with its tools, the rendered
    messages, the replica number. Not in it: run mode, time-outs, retries, concurrency, base URL, prices."""

    __slots__ = ("_prefix",)

    def __init__(
        self,
        provider: str,
        model: str,
        params: Params,
        schema: Schema | None,
        output_field: str | None = None,
        reply: str = "text",
        agent: JSONValue = None,
    ) -> None:
        shared = {
            "format": FORMAT_VERSION,
            "provider": provider,
            "model": model,
            "params": params_body(params),
            "schema": schema.body if schema else None,
            **({"output_field": output_field} if output_field else {}),
            **({"reply": reply} if reply != "text" else {}),
            **({"agent": agent} if agent is not None else {}),
        }
        self._prefix = blake2b(
            canonical(shared).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES
        )

    def fingerprint(
        self, messages: tuple[Message, ...], *, replica: int = 0, salt: str = ""
    ) -> bytes:
        """16 bytes that know a task again. `salt`: empty for `reuse: content`, the row's id for `reuse: row`."""
        hasher = self._prefix.copy()
        content = [[message.role, ["text", message.text]] for message in messages]
        hasher.update(snapshot([content, replica, salt]).encode("utf-8", "surrogatepass"))
        return hasher.digest()


def seen_hash(shown: JSONValue, answer: JSONValue, redone: Sequence[JSONValue] = ()) -> bytes:
    """Stands for what a person is shown of an answer; `redone`: the earlier ones that were given again, with why."""
    return digest(snapshot([shown, answer, *redone]))


def review_key(
    workflow: str, stage: str, row_id: RowId, seen: bytes, kind: str = "review"
) -> bytes:
    """Names what is decided: of a review what is `seen` of a row; of a result set by hand (`fix`), and of an answer to
    be given again (`redo`), its fingerprint."""
    return digest(canonical([kind, workflow, stage, row_id, seen.hex()]))


def share_of(what: str, stage: str, row_id: RowId) -> float:
    """A number in [0, 1) by which rows are drawn: the same for the same row, and another one for each thing drawn."""
    return int.from_bytes(digest(canonical([what, stage, row_id]))[:8], "big") / 2**64


def tool_key(what: Sequence[JSONValue], arguments: JSONValue) -> bytes:
    """Stands for equal calls of a tool: `what` is all that makes it another tool, or one that others may not share."""
    return digest(canonical(["tool", *what, arguments]))


def idempotency_key(
    fingerprint: bytes, turn: int, call: int, name: str, arguments: JSONValue
) -> str:
    """What a service tells the repetition of a call from another call by: the same for a call that is made again."""
    return digest(canonical(["call", fingerprint.hex(), turn, call, name, arguments])).hex()


def called_agent(fingerprint: bytes, turn: int, call: int, own: bytes) -> bytes:
    """The fingerprint of what an agent is asked by a call of another agent's task; `own` is that of the question."""
    return digest(canonical(["agent", fingerprint.hex(), turn, call, own.hex()]))


def trace_ids(*what: JSONValue) -> tuple[int, int]:
    """The id of a trace (16 bytes), and that of its first span (8 bytes), of what it is the trace of; never 0. The
    project's own token is in it: collectors take the traces of many projects."""
    text = canonical(["trace", *what]).encode("utf-8", "surrogatepass")
    found = blake2b(text, digest_size=24).digest()
    return int.from_bytes(found[:16]) or 1, int.from_bytes(found[16:]) or 1


def batch_intent(project: str, run: int, batch: int, first: bytes) -> str:
    """The name of a batch before it exists: 16 characters of a-z and 2-7. `project` is the database's own token,
    `first` the fingerprint of its first task, so that a restored database names no other content alike."""
    return (
        b32encode(digest(canonical(["batch", project, run, batch, first.hex()])))[:16]
        .decode()
        .lower()
    )


def custom_id(intent: str, place: int, fingerprint: bytes) -> str:
    """The name of a task in a batch: which batch, line (from 0) and question. At most 40 characters of [a-z0-9-]."""
    return f"{intent}-{place}-{fingerprint[:6].hex()}"


def read_custom_id(text: str) -> tuple[str, int, str] | None:
    """Intent, place and the beginning of the fingerprint (hex) of a custom id; None where it is none of ours."""
    intent, _, rest = text.partition("-")
    place, _, mark = rest.partition("-")
    if (
        len(intent) != 16
        or len(mark) != 12
        or len(place) > 10
        or not place.isascii()
        or not place.isdigit()
    ):
        return None
    return intent, int(place), mark


def place_mark(root: str, inode: int) -> str:
    """Tells the folder of a project from its copies, on this machine or another: a checkout has a folder of its own."""
    return digest(canonical(["place", root, inode])).hex()[:16]


SIMULATOR_KEY = "x-agac-simulator-key"
"""The header in which the simulator that agac starts by itself gets the key that this process made for it."""


def account_mark(base_url: str, api_key: str | None) -> str:
    """Tells accounts apart without holding anything of the key."""
    return digest(canonical(["account", base_url, api_key])).hex()[:16]


# The order of row ids, wherever something is ordered by id and not by where it stood.

IdOrder = tuple[tuple[int, int, str], ...]


def id_order(row_id: RowId) -> IdOrder:
    """Sorts ids part by part, as `/` parts them: whole numbers by their size, before text. `a/2` is before `a/10`."""
    if isinstance(row_id, int):
        return ((0, row_id, ""),)
    parts = row_id.split("/")
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in parts
    )
