"""Makes the golden files again: `python tests/golden/make.py [NAME…]`. The commit says why they may change."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from support.server import simulator

from golden.pinning import GENERAL, ODD, SHIPPED, golden, pin, written


def main(names: list[str]) -> None:
    """Writes one file a name."""
    with TemporaryDirectory() as folder, simulator() as server:
        for name in names or [*SHIPPED, *ODD, GENERAL]:
            server.reset()
            golden(name).parent.mkdir(exist_ok=True)
            golden(name).write_text(written(pin(name, Path(folder) / name, server)), encoding="utf-8")
            print(golden(name))


if __name__ == "__main__":
    main(sys.argv[1:])
