"""Uploads: a multipart body, read piece by piece to disk."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from aiohttp import BodyPartReader, web

from agac.simulator.asks import ApiError
from agac.simulator.openaiwire import missing

PIECE = 2**18
LARGEST = 512 * 2**20
"""Bytes of a file."""

LONGEST_FIELD = 10_000
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
SHORTEST_STAY, LONGEST_STAY = 3600, 2_592_000


@dataclass(slots=True)
class Upload:
    """A file that came in: where its bytes are, its name, and what was said about it."""

    path: Path | None = None
    name: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def stay(self) -> float | None:
        """For how many seconds the file is to be kept, None where nothing was said; raises ApiError."""
        anchor, seconds = self.fields.get("expires_after[anchor]"), self.fields.get("expires_after[seconds]")
        return None if anchor is None and seconds is None else stay(anchor, seconds, "expires_after")

    def check(self) -> None:
        """Raises ApiError for an upload that OpenAI refuses."""
        if self.path is None:
            raise missing("file")
        purpose = self.fields.get("purpose")
        if not purpose:
            raise missing("purpose")
        if purpose not in PURPOSES:
            known = ", ".join(f"'{one}'" for one in PURPOSES)
            raise ApiError(400, f"'{purpose}' is not one of [{known}] - 'purpose'", param="purpose")
        if purpose == "batch" and not self.name.endswith(".jsonl"):
            told = f"Invalid file format for Batch API: '{self.name}'. Must be .jsonl"
            raise ApiError(400, told, param="file")
        if self.path.stat().st_size == 0:
            raise ApiError(400, "The file is empty.", param="file")

    def drop(self) -> None:
        """Deletes what was not taken over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def stay(anchor: object, seconds: object, param: str) -> float:
    """How long something is kept after its creation; raises ApiError."""
    if anchor != "created_at":
        raise ApiError(400, f"Invalid '{param}.anchor': expected 'created_at'.", param=f"{param}.anchor")
    try:
        asked = int(str(seconds))
    except ValueError:
        asked = 0
    if not SHORTEST_STAY <= asked <= LONGEST_STAY:
        told = f"Invalid '{param}.seconds': expected an integer from {SHORTEST_STAY} to {LONGEST_STAY}."
        raise ApiError(400, told, param=f"{param}.seconds")
    return float(asked)


async def receive(request: web.Request, folder: Path) -> Upload:
    """Reads a multipart body; the file goes to a temporary file in `folder`. Raises ApiError for what is none."""
    upload = Upload()
    if not request.content_type.startswith("multipart/"):
        raise ApiError(400, "We expected a multipart/form-data body with 'file' and 'purpose'.")
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise ApiError(400, "A part of the body has parts of its own.")
            if part.name == "file":
                folder.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(prefix=".upload-", dir=folder)
                upload.path, upload.name = Path(name), part.filename or "file"
                with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 (a descriptor, a local disk)
                    await copy(part, file)
            else:
                upload.fields[part.name or ""] = (await part.read_chunk(LONGEST_FIELD)).decode(errors="replace")
    except ValueError as error:
        upload.drop()
        raise ApiError(400, f"We could not parse the multipart body: {error}") from error
    except BaseException:
        upload.drop()
        raise
    return upload


async def copy(part: BodyPartReader, file: IO[bytes]) -> None:
    """The bytes of a part."""
    size = 0
    while piece := await part.read_chunk(PIECE):
        size += len(piece)
        if size > LARGEST:
            raise ApiError(413, f"The file is larger than {LARGEST:,} bytes, the most.", code="file_too_large")
        file.write(piece)
