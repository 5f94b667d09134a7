"""Writes the log: lines for people or JSON, to standard error or a file."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from agac.cli import terminal

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLines(logging.Formatter):
    """Writes a line per record. A record of a call has its request and reply below, without
    control characters."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        texts = [f"{message['role']}: {message['text']}" for message in fields.get("request", ())]
        if fields.get("reply") is not None:
            texts.append(f"reply: {fields['reply']}")
        below = ["    " + terminal.harmless(text).replace("\n", "\n    ") for text in texts]
        return "\n".join([terminal.harmless(super().format(record)), *below])


class JsonLines(logging.Formatter):
    """Writes a JSON object per record: `time` (UTC), `level`, `logger`, `message`, then the
    record's other fields."""

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


class LogFile(logging.FileHandler):
    """Says once that it cannot be written: a log must not end what it is about."""

    can_be_written = True

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        if self.can_be_written:
            self.can_be_written = False
            terminal.say_error(
                f"--log-file {self.baseFilename}: {sys.exc_info()[1]}",
                word="warning",
                colour="yellow",
            )


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the moment: while progress is shown, that writes above the
    progress."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
