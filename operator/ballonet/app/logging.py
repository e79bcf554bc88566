"""Logging: one line an event, JSON in a pod, for our own code and for libraries alike."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

from ballonet.app.settings import LogFormat, LogLevel

# What kopf says in a thread of its own on every start; signals are handled by the main thread.
_EXPECTED: Final = "OS signals are ignored"


def configure(level: LogLevel, form: LogFormat) -> None:
    """Send everything that is logged to standard output. Idempotent."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form is LogFormat.JSON
        # Its own choice of a traceback shows what stands in variables: tokens among that.
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    handler.addFilter(lambda record: not str(record.msg).startswith(_EXPECTED))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries tell of each step at lower levels.
    library = logging.INFO if level is LogLevel.DEBUG else logging.WARNING
    for name in ("kopf", "aiohttp", "asyncio", "kubernetes"):
        logging.getLogger(name).setLevel(max(library, root.level))
