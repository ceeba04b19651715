"""Requests of the `token` commands, and the file by which a job logs in. HMACs, the passwords of tokens, are
in no row: only `create` returns one."""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.client.properties import properties_text
from tierlog.metadata.acls import USER
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import create_delegation_token as create_api
from tierlog.protocol.messages import describe_delegation_token as describe_api
from tierlog.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tierlog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tierlog.protocol.sasl.scram import HASHES, TOKEN_EXTENSION

Row = dict[str, Any]
DEFAULT_MS = -1
"""Lifetimes that the broker chooses; as the period of an expiry: now."""

_TAKEN = frozenset(
    {
        "client.dns.lookup", "security.protocol", "bootstrap.servers",
        "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.cipher.suites",
        "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.location",
        "ssl.keystore.location", "ssl.keystore.type", "ssl.protocol", "ssl.truststore.certificates",
        "ssl.truststore.location", "ssl.truststore.type",
    }
)  # fmt: skip
"""Settings of a client that a job's file takes over. Others may be secrets: of a login, a key, a schema
registry or an interceptor."""


class NewToken(NamedTuple):
    """`hmac`: in base64, as clients use it."""

    row: Row
    hmac: str


def create(client: KafkaClient, owner: str | None, renewers: Sequence[str], lifetime_ms: int) -> NewToken:
    kind, _, name = _principal(owner).partition(":") if owner else (None, "", None)
    renewing = [_principal(one).partition(":") for one in renewers]
    request = create_api.CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            create_api.CreatableRenewers(principal_type=one, principal_name=other)
            for one, _, other in renewing
        ],
        max_lifetime_ms=lifetime_ms,
    )
    made = client.call(request)
    if made.error_code == ErrorCode.UNSUPPORTED_VERSION:  # the response has no text
        from tierlog.metadata.controller.tokens import TOKENS_FORMAT

        raise CliError(
            f"delegation token: the cluster's tierlog.format is below {TOKENS_FORMAT}",
            hint="Upgrade all nodes, then run `tierlog cluster finalize`.",
            code=ExitCode.FAILED,
        )
    raise_for(made.error_code, None, "delegation token")
    row = {
        "token_id": made.token_id,
        "owner": f"{made.principal_type}:{made.principal_name}",
        "requester": f"{made.token_requester_principal_type}:{made.token_requester_principal_name}",
        "renewers": [_principal(one) for one in renewers],
        "issued_ms": made.issue_timestamp_ms,
        "expires_ms": made.expiry_timestamp_ms,
        "max_ms": made.max_timestamp_ms,
    }
    return NewToken(row, _text(made.hmac))


def rows(client: KafkaClient, owners: Sequence[str] = ()) -> list[Row]:
    """The tokens that the client may see, oldest first; with `owners` those that one of them owns, created or
    may renew."""
    return [row for row, _ in _described(client, owners)]


def selected(client: KafkaClient, token_ids: Sequence[str]) -> list[Row]:
    """These tokens. Raises CliError for one that does not exist, or that the client may not see."""
    found = {row["token_id"]: row for row in rows(client)}
    for token_id in token_ids:
        if token_id not in found:
            raise unknown_token(token_id)
    return [found[token_id] for token_id in token_ids]


def renew(client: KafkaClient, token_id: str, period_ms: int) -> int:
    """When the token expires now."""
    request = RenewDelegationTokenRequest(hmac=_hmac(client, token_id), renew_period_ms=period_ms)
    response = client.call(request)
    raise_for(response.error_code, None, f"token {token_id}")
    return int(response.expiry_timestamp_ms)


def expire(client: KafkaClient, token_id: str, period_ms: int) -> int:
    """When the token expires now. `period_ms` DEFAULT_MS: it is removed at once."""
    request = ExpireDelegationTokenRequest(hmac=_hmac(client, token_id), expiry_time_period_ms=period_ms)
    response = client.call(request)
    raise_for(response.error_code, None, f"token {token_id}")
    return int(response.expiry_timestamp_ms)


@contextmanager
def private_file(file: Path) -> Iterator[TextIO]:
    """A new file that only its owner can read, which is removed again if the body fails. Raises CliError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise usage(f"{file} exists", hint="Choose another file with --output.") from None
    except OSError as failure:
        raise usage(f"cannot write {file}: {failure.strerror}", hint="Check --output.") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            yield opened
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def client_settings(token: NewToken, like: Mapping[str, str]) -> str:
    """Client settings of a job that logs in by the token. `like`: the settings of this command, from which
    address and TLS are taken, without a login or a private key."""
    mechanism = like.get("sasl.mechanism", "")
    taken = {name: value for name, value in like.items() if name in _TAKEN}
    taken["sasl.mechanism"] = mechanism if mechanism in HASHES else min(HASHES)
    taken["sasl.jaas.config"] = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.row["token_id"]}" password="{token.hmac}" {TOKEN_EXTENSION}="true";'
    )
    return properties_text(taken)


def unknown_token(token_id: str) -> CliError:
    return CliError(
        f"there is no token {token_id}, or you may not see it",
        hint="List tokens with `tierlog token list`.",
        code=ExitCode.NOT_FOUND,
    )


def _hmac(client: KafkaClient, token_id: str) -> bytes:
    for row, hmac in _described(client, ()):
        if row["token_id"] == token_id:
            return hmac
    raise unknown_token(token_id)


def _described(client: KafkaClient, owners: Sequence[str]) -> list[tuple[Row, bytes]]:
    wanted = [_principal(one).partition(":") for one in owners]
    response = client.call(
        describe_api.DescribeDelegationTokenRequest(
            owners=[
                describe_api.DescribeDelegationTokenOwner(principal_type=one, principal_name=other)
                for one, _, other in wanted
            ]
            or None
        )
    )
    raise_for(response.error_code, None, "delegation tokens")
    found = [
        (
            {
                "token_id": one.token_id,
                "owner": f"{one.principal_type}:{one.principal_name}",
                "requester": f"{one.token_requester_principal_type}:{one.token_requester_principal_name}",
                "renewers": [f"{each.principal_type}:{each.principal_name}" for each in one.renewers],
                "issued_ms": one.issue_timestamp,
                "expires_ms": one.expiry_timestamp,
                "max_ms": one.max_timestamp,
            },
            bytes(one.hmac),
        )
        for one in response.tokens
    ]
    return sorted(found, key=lambda pair: (pair[0]["issued_ms"], pair[0]["token_id"]))


def _principal(name: str) -> str:
    return name if name.startswith(USER) else f"{USER}{name}"


def _text(hmac: Any) -> str:
    return base64.b64encode(bytes(hmac)).decode()
