"""The raw client that agac is compared with: aiohttp, the same concurrency, json, schema validation, and one durable
SQLite row a result with group commit. Nothing else: no resume, no reuse, no retries, no accounting.

    python bench/bare.py INPUT.csv BASE_URL CONCURRENCY DATABASE
"""

from __future__ import annotations

import asyncio
import csv
import json
import sqlite3
import sys
from pathlib import Path

import aiohttp
from jsonschema_rs import Draft202012Validator

SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"type": "string", "enum": ["positive", "neutral", "negative"]},
        "topics": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "reason": {"type": "string"},
    },
    "required": ["sentiment", "topics", "reason"],
    "additionalProperties": False,
}


async def work(rows, session: aiohttp.ClientSession, url: str, validator, queue: list, wake: asyncio.Event) -> None:
    for row in rows:
        body = {
            "model": "stub",
            "messages": [{"role": "user", "content": f"Product: {row['product']}\nReview: {row['review']}"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "review", "schema": SCHEMA, "strict": True},
            },
        }
        async with session.post(url, data=json.dumps(body).encode()) as response:
            reply = json.loads(await response.read())
        value = json.loads(reply["choices"][0]["message"]["content"])
        if not validator.is_valid(value):
            raise ValueError(value)
        queue.append((row["id"], json.dumps(value)))
        wake.set()


def store(database: sqlite3.Connection, rows: list[tuple[str, str]]) -> None:
    database.executemany("INSERT INTO result VALUES (?, ?)", rows)
    database.commit()


async def write(database: sqlite3.Connection, queue: list, wake: asyncio.Event) -> None:
    while True:
        await wake.wait()
        wake.clear()
        rows, queue[:] = list(queue), []
        await asyncio.to_thread(store, database, rows)
        await asyncio.sleep(0.01)


async def main(path: str, base_url: str, concurrency: int, database_path: str) -> None:
    database = sqlite3.connect(database_path, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE result (id TEXT PRIMARY KEY, value TEXT)")
    queue: list = []
    wake = asyncio.Event()
    with Path(path).open(newline="") as file:
        rows = csv.DictReader(file)
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            writer = asyncio.create_task(write(database, queue, wake))
            validator = Draft202012Validator(SCHEMA, validate_formats=True, offline=True)
            url = f"{base_url}/chat/completions"
            await asyncio.gather(*(work(rows, session, url, validator, queue, wake) for _ in range(concurrency)))
            writer.cancel()
    store(database, queue)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
