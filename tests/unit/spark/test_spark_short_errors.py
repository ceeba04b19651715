"""Errors in Spark's output: the message alone for tierlog's own, everything for bugs."""

import traceback
from collections.abc import Callable

import pytest

from tierlog.base.types import InvariantViolation
from tierlog.spark.options import InvalidOption
from tierlog.spark.short_errors import short_errors


def shown(failure: Exception) -> str:
    """What Spark prints of a failure that is raised three calls deep, with a cause."""

    def fail() -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise failure from cause

    @short_errors
    def method(call: Callable[[], None]) -> None:
        call()

    with pytest.raises(type(failure)):
        try:
            method(fail)
        except Exception:
            text = traceback.format_exc()
            raise
    return text


def test_own_errors_are_their_message() -> None:
    text = shown(InvalidOption("set `path`"))
    assert text.endswith("InvalidOption: set `path`\n") and len(text.splitlines()) <= 6
    assert "KeyError" not in text and "in fail" not in text


@pytest.mark.parametrize("failure", [InvariantViolation("broken"), ZeroDivisionError("bug")])
def test_bugs_keep_their_traceback(failure: Exception) -> None:
    text = shown(failure)
    assert "KeyError: 'cause'" in text and "in fail" in text
