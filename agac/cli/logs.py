"""The log: where it goes, and how a line of it looks, for people or for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click

from agac.cli.live.text import harmless

LogFormat = Literal["text", "json"]


class TextLines(logging.Formatter):
    """One line for each record; below that of a call what was asked and answered, with nothing that would command the
    terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        said = [(message["role"], message["text"]) for message in fields.get("request", ())]
        if fields.get("reply") is not None:
            said.append(("reply", fields["reply"]))
        return "\n".join([harmless(super().format(record)), *(_indented(f"{who}: {text}") for who, text in said)])


class JsonLines(logging.Formatter):
    """One JSON object a record: `time` (UTC), `level`, `logger`, `message`, then what the record tells beside that."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def start_logging(level: str, file: Path | None, form: LogFormat) -> None:
    """Sends agac's log to standard error, or to the end of a file."""
    logger = logging.getLogger("agac")
    logger.setLevel(level.upper())
    try:
        handler: logging.Handler = (
            logging.FileHandler(file, encoding="utf-8", errors="backslashreplace") if file else logging.StreamHandler()
        )
    except OSError as error:
        raise click.UsageError(f"--log-file {file}: {error.strerror}") from error
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger.addHandler(handler)


def _indented(text: str) -> str:
    return "    " + harmless(text).replace("\n", "\n    ")
