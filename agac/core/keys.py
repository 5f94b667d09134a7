"""Makes every id and hash of agac, and orders ids. All are pure functions of content."""

from __future__ import annotations

import json
import re
from base64 import b32encode
from collections.abc import Iterable, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from agac.core.json_text import json_encoder
from agac.core.types import RowId

if TYPE_CHECKING:
    from agac.core.types import JSONValue, Message, Params, Schema

# Hashes are 16 bytes of BLAKE2b over canonical JSON: enough for 10^7 tasks (the chance of any
# collision is below 10^-24), and half the index of a 32-byte digest.

FORMAT_VERSION = 1
"""Part of every fingerprint. Raising it asks every task again: only for a change in what a request
means."""

DIGEST_BYTES = 16

canonical = json_encoder(sort_keys=True)
"""The one text of a JSON value: keys sorted, no spaces, not ASCII-escaped."""

snapshot = json_encoder()
"""A row's fields as the store keeps them and as exports show them: in the order of the input."""


def digest(text: str) -> bytes:
    """Computes 16 bytes that stand for `text`. Lone surrogates differ, and are not refused."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def bytes_digest(pieces: Iterable[bytes]) -> bytes:
    """Computes the `digest` of the text that these bytes are as Latin-1, a piece at a time."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        found.update(piece.decode("latin-1").encode())
    return found.digest()


def row_hash(data_json: str) -> bytes:
    """Hashes the content of a row: its snapshot text, as stored, so that it is encoded once."""
    return digest(data_json)


def member_hash(row_id: RowId) -> int:
    """Orders the members of a group that is reduced as a tree: 64 bits, unsigned, of the id alone.

    So other members do not move one. Stored less 2**63: SQLite's integers are signed."""
    return int.from_bytes(digest(canonical(row_id))[:8], "big")


def shard_of(row_id: RowId, of: int) -> int:
    """Numbers the shard, from 1 to `of`, of a row or a group.

    It depends on the id alone, so that other rows do not move one."""
    return member_hash(row_id) % of + 1


def numbered_id(row_id: RowId, number: int) -> str:
    """Makes the id of a row whose id was there before (`on_duplicate_id: suffix`).

    `number` counts from 2."""
    return f"{row_id}#{number}"


def message_id(token: str, about: str, target: str) -> str:
    """Names a message to a target about something in the store of this `token`.

    The name is the same in each attempt."""
    return f"msg_{digest(canonical([token, about, target])).hex()}"


JOB = "job_"  # how the aliases of row runs begin


def job_name(stem: str, output: str, kind: str = "process") -> str:
    """Names a row run by the path of its output, or a task from Python by all that it is.

    `stem` is for people."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", stem)[:40].strip("-")
    return f"{kind}-{words or 'rows'}-{digest(output).hex()[:8]}"


def is_job(workflow: str) -> bool:
    """True if a workflow's name is that of a row run."""
    return re.fullmatch(r"process-.+-[0-9a-f]{8}", workflow) is not None


def job_alias(run: int) -> str:
    """Gives the alias of a job's run, which it has as well as its number."""
    return f"{JOB}{run}"


def prefix_mark(
    lane: str, messages: Sequence[Message], agent: JSONValue, schema: Schema | None
) -> str:
    """Hashes what all requests of a stage to a model begin with."""
    said = [[one.role, one.text] for one in messages]
    return digest(canonical([lane, said, agent, schema and schema.body])).hex()[:16]


def definition_hash(body: JSONValue) -> bytes:
    """Hashes everything in a resolved workflow that can change a result."""
    return digest(canonical(body))


def params_body(params: Params) -> dict[str, Any]:
    """Gives the parameters that are set, by name."""
    return {f.name: value for f in fields(params) if (value := getattr(params, f.name)) is not None}


def local_fingerprint(prints: bytes, given: JSONValue) -> bytes:
    """Hashes a task that asks no model: `prints` of its action, and `given`, the input in order."""
    return digest(f"{prints.hex()}:{snapshot(given)}")


def replicas_fingerprint(prints: Sequence[bytes], vote: JSONValue) -> bytes:
    """Hashes a task asked several times: its replicas' fingerprints in order, and the vote."""
    return digest(canonical(["replicas", vote, [one.hex() for one in prints]]))


def reuse_salt(reuse: str, row_id: RowId, run: int) -> str:
    """Gives the text that keeps equal requests apart.

    It is empty for `content`, the row for `row`, and the row in this run for `never`."""
    if reuse == "content":
        return ""
    return json.dumps(row_id if reuse == "row" else [row_id, run])


class Fingerprinter:
    """Makes the fingerprints of one stage's tasks.

    What all tasks share is hashed once, what differs is hashed per task. A fingerprint includes
    the format version, provider, the stage's first model, parameters, schema, the agent with its
    tools, the rendered messages and the replica number. It does not include run mode, time-outs,
    retries, concurrency, base URL and prices."""

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
        """Computes 16 bytes that identify a task.

        `salt`: empty for `reuse: content`, the row's id for `reuse: row`."""
        hasher = self._prefix.copy()
        content = [[message.role, ["text", message.text]] for message in messages]
        hasher.update(snapshot([content, replica, salt]).encode("utf-8", "surrogatepass"))
        return hasher.digest()


def seen_hash(shown: JSONValue, answer: JSONValue, redone: Sequence[JSONValue] = ()) -> bytes:
    """Hashes what a person is shown of an answer.

    `redone`: the earlier answers that were asked for again, each with the reason."""
    return digest(snapshot([shown, answer, *redone]))


def review_key(
    workflow: str, stage: str, row_id: RowId, seen: bytes, kind: str = "review"
) -> bytes:
    """Names the subject of a decision: of a review what is `seen` of a row.

    Of a result set by hand (`fix`), and of an answer to be given again (`redo`), it is the
    fingerprint."""
    return digest(canonical([kind, workflow, stage, row_id, seen.hex()]))


def share_of(what: str, stage: str, row_id: RowId) -> float:
    """Computes a number in [0, 1) by which rows are drawn.

    It is always the same for a row, and another one for each thing drawn."""
    return int.from_bytes(digest(canonical([what, stage, row_id]))[:8], "big") / 2**64


def tool_key(what: Sequence[JSONValue], arguments: JSONValue) -> bytes:
    """Hashes a call of a tool, alike for equal calls.

    `what` is all that makes it another tool, or one that others may not share."""
    return digest(canonical(["tool", *what, arguments]))


def idempotency_key(
    fingerprint: bytes, turn: int, call: int, name: str, arguments: JSONValue
) -> str:
    """Makes the key by which a service recognises a repeated call: a repetition has the same."""
    return digest(canonical(["call", fingerprint.hex(), turn, call, name, arguments])).hex()


def called_agent(fingerprint: bytes, turn: int, call: int, own: bytes) -> bytes:
    """Fingerprints what another agent's task asks an agent; `own` is that of the question."""
    return digest(canonical(["agent", fingerprint.hex(), turn, call, own.hex()]))


def trace_ids(*what: JSONValue) -> tuple[int, int]:
    """Makes the ids of a trace (16 bytes) and of its first span (8 bytes); neither is 0.

    The project's own token is in `what`: collectors take the traces of many projects."""
    text = canonical(["trace", *what]).encode("utf-8", "surrogatepass")
    found = blake2b(text, digest_size=24).digest()
    return int.from_bytes(found[:16]) or 1, int.from_bytes(found[16:]) or 1


def batch_intent(project: str, run: int, batch: int, first: bytes) -> str:
    """Names a batch before it exists: 16 characters of a-z and 2-7.

    `project` is the database's own token, `first` the fingerprint of its first task, so that a
    restored database gives the name to no other content."""
    return (
        b32encode(digest(canonical(["batch", project, run, batch, first.hex()])))[:16]
        .decode()
        .lower()
    )


def custom_id(intent: str, place: int, fingerprint: bytes) -> str:
    """Names a task in a batch: which batch, line (from 0) and question.

    It has at most 40 characters of [a-z0-9-]."""
    return f"{intent}-{place}-{fingerprint[:6].hex()}"


def read_custom_id(text: str) -> tuple[str, int, str] | None:
    """Splits a custom id into intent, line and the beginning of the fingerprint (hex).

    None if the id is not one of agac's."""
    intent, _, rest = text.partition("-")
    place, _, mark = rest.partition("-")
    if len(intent) != 16 or len(mark) != 12:
        return None
    is_line = place.isascii() and place.isdigit() and len(place) <= 10
    return (intent, int(place), mark) if is_line else None


def place_mark(root: str, inode: int) -> str:
    """Tells a project's folder from its copies, on this machine or another.

    A checkout has a folder of its own."""
    return digest(canonical(["place", root, inode])).hex()[:16]


SIMULATOR_KEY = "x-agac-simulator-key"
"""The header with the key that this process made for the simulator that agac starts by itself."""


def account_mark(base_url: str, api_key: str | None) -> str:
    """Tells accounts apart without holding anything of the key."""
    return digest(canonical(["account", base_url, api_key])).hex()[:16]


# The order of row ids, wherever something is ordered by id and not by where it stood.

IdOrder = tuple[tuple[int, int, str], ...]


def id_order(row_id: RowId) -> IdOrder:
    """Makes a key that sorts ids by the parts between `/`: numbers by size, before text.

    So `a/2` is before `a/10`."""
    if isinstance(row_id, int):
        return ((0, row_id, ""),)
    parts = row_id.split("/")
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in parts
    )
