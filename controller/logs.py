"""The controller's log: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

LogFormat = Literal["text", "json"]
_PLAIN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the caller passed as ``extra``."""
    return {key: value for key, value in record.__dict__.items() if key not in _PLAIN}


def _time(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``TIME LEVEL LOGGER: message key=value``, tracebacks on lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        for key, value in _fields(record).items():
            line += f" {key}={value}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object: time, level, logger, message, the fields of ``extra``, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        data: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            data.setdefault(key, value)
        if record.exc_info:
            data["traceback"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str, ensure_ascii=False)


def configure(format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Send all logs to ``stream`` (standard error) from ``level`` on; once per process.

    ``level`` is that of Ringstep's own loggers; libraries are heard from WARNING on.

    Raises:
        KeyError: not "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ringstep").setLevel(_LEVELS[level])
    logging.getLogger("grpc").setLevel(logging.ERROR)
