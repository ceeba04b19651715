"""`tierlog token create` in a cluster that cannot have tokens yet."""

from typing import Any

import pytest

from tierlog.cli import tokens
from tierlog.cli.errors import CliError, ExitCode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_delegation_token import CreateDelegationTokenResponse


class Upgraded:
    """A client of a cluster in a rolling upgrade, as the controller answers below format 3."""

    def call(self, request: Any) -> CreateDelegationTokenResponse:
        return CreateDelegationTokenResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


def test_error_below_format_3_says_what_to_do() -> None:
    client: Any = Upgraded()
    with pytest.raises(CliError, match=r"tierlog\.format is below 3") as refused:
        tokens.create(client, None, [], 1_000)
    assert "tierlog cluster finalize" in (refused.value.hint or "")
    assert refused.value.code == ExitCode.FAILED
