"""Names in the header Host: a web page whose name resolves to the gateway must not use it."""

from types import SimpleNamespace
from typing import Any

import pytest

from tierlog.rest.errors import MISDIRECTED, RestError
from tierlog.rest.server import check_host


def check(host: str) -> None:
    request: Any = SimpleNamespace(headers={"Host": host}, path="/v3/clusters")
    gateway: Any = SimpleNamespace(hosts={"rest.example"})
    check_host(request, gateway)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8082", "[::1]:8082", "localhost", "a.localhost.", "REST.example:80", "[fe80::1%eth0]"]
)
def test_addresses_and_own_names_are_accepted(host: str) -> None:
    check(host)


@pytest.mark.parametrize("host", ["evil.example", "", "[", "[::1", "a]", "\u2100", "127.0.0.1@evil.example"])
def test_other_names_and_nonsense_are_refused(host: str) -> None:
    with pytest.raises(RestError) as refused:
        check(host)
    assert refused.value.code == MISDIRECTED
