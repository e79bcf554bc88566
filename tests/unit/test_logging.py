"""What the operator logs, in both formats."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from ballonet.app.logging import configure
from ballonet.app.settings import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _fails(token: str) -> None:
    raise ValueError(f"a token of {len(token)} characters")


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("library", [False, True])
def test_a_traceback_says_where_and_not_what_stood_in_variables(
    form: LogFormat, library: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogLevel.INFO, form)
    try:
        _fails("".join(("hidden", "1234")))
    except ValueError as error:
        if library:
            logging.getLogger("kopf").exception("Pass failed")
        else:
            structlog.get_logger("ballonet").error("Pass failed", exc_info=error)
    said = capsys.readouterr().out
    assert "Pass failed" in said
    assert "a token of 10 characters" in said
    assert "_fails" in said
    assert "hidden1234" not in said
