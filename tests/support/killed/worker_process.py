"""What runs in the process of a worker behind two pipes: workers.py starts it."""

import asyncio
import os
import pickle
import struct
import sys
from contextlib import suppress
from typing import Any

from agac.engine.workers.work import ChunkWorker

_LENGTH = struct.Struct("<Q")


async def frame(reader: asyncio.StreamReader) -> Any:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(size))


def framed(value: Any) -> bytes:
    body = pickle.dumps(value)
    return _LENGTH.pack(len(body)) + body


def work() -> None:
    """What runs in the process."""
    asyncio.run(_work())


async def _work() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb"))
    out, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
    worker = ChunkWorker(await frame(reader))

    async def give(number: int, what: str, given: tuple[Any, ...]) -> None:
        came = await getattr(worker, what)(*given)
        out.write(framed((number, came)))
        out.flush()

    tasks = set()
    with suppress(asyncio.IncompleteReadError):
        while True:
            tasks.add(asyncio.ensure_future(give(*await frame(reader))))
    for task in tasks:
        task.cancel()
    await worker.close()
