"""A database is closed whatever happens meanwhile: its thread would keep the process for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, sys, threading
from pathlib import Path
from agac.store.writer import open_database

async def main(ticks, path):
    loop = asyncio.get_running_loop()
    def tick(left):
        if not left:
            raise KeyboardInterrupt
        loop.call_soon(tick, left - 1)
    async with open_database(path) as database:
        await database.reader.execute_fetchall("select 1")
        loop.call_soon(tick, ticks)
    await asyncio.sleep(0.3)
    print("closed")

try:
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("ticks", range(9))
def test_an_interruption_while_a_database_closes_does_not_keep_the_process(ticks: int, tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(ticks), str(tmp_path / "agac.db")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n")
