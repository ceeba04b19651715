"""Format and destination of a node's log.

A line has time, level, the event's name, the fields of the call, and the event's text and remedy from the
catalogue (broker/log_events). Libraries that log with the standard library, as asyncio does, log such lines
too. The last lines stay in memory for the admin API, because operators may not reach the host.
"""

import logging
import sys
from collections import deque
from contextlib import suppress
from typing import Any

import structlog

from tierlog.broker.log_events.catalogue import EVENTS
from tierlog.broker.log_events.event import Event
from tierlog.config.telemetry import JSON_LINES

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Levels that lines can have. Libraries may define others between them."""

LINES_KEPT, CHARACTERS_KEPT = 1_000, 8_192
"""Lines in memory, and characters of each: at most 8 MiB, usually 0.3."""

_log = structlog.get_logger("tierlog")
_kept: deque[str] = deque(maxlen=LINES_KEPT)


def last_lines() -> list[str]:
    """The last lines of this process, the oldest first. Empty before `configure_logging`."""
    return list(_kept)


def configure_logging(line_format: str) -> None:
    """Log one line per event to standard error; standard output belongs to the command line. `line_format`:
    JSON_LINES or TEXT_LINES."""
    is_json = line_format == JSON_LINES
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            _describe,
            structlog.processors.JSONRenderer() if is_json else structlog.processors.KeyValueRenderer(),
            _keep,  # type: ignore[list-item]
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(_LogStream()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_LibraryMessages()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def _describe(_logger: Any, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the event's text and remedy, and put what all lines have first."""
    time, level, name = line.pop("timestamp"), line.pop("level"), line.pop("event")
    event = EVENTS.get(name, Event(""))
    described = {"timestamp": time, "level": level, "event": name, "message": event.says, **line}
    return described | {"next": event.remedy} if event.remedy else described


def _keep(_logger: Any, _method: str, line: str) -> str:
    _kept.append(line[:CHARACTERS_KEPT])
    return line


class _LibraryMessages(logging.Handler):
    """Passes the messages of the standard library's loggers to the node's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """A message that cannot be formatted must not raise in the library."""
        try:
            level = max((one for one in _LEVELS if one <= record.levelno), default=logging.INFO)
            text = record.getMessage()
            _log.log(level, "library.message", library=record.name, text=text, exc_info=record.exc_info)
        except Exception:
            self.handleError(record)


class _LogStream:
    """Standard error. A line that cannot be written (disk full, pipe closed) is lost; the node continues."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()
