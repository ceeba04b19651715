"""Format and destination of a node's log."""

import logging
import sys
from contextlib import suppress

import structlog


def configure_logging() -> None:
    """Log one line per event to standard error; standard output belongs to the command line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(_LogStream()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


class _LogStream:
    """Standard error. A line that cannot be written (disk full, pipe closed) is lost; the node continues."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()
