"""A broker with delegation tokens, tierlog or Apache Kafka: connections that logged in, and requests about
tokens."""

import base64
import secrets
from collections.abc import Callable
from typing import Any

from wire_client import Client

from tierlog.metadata.acls import AclOperation, Permission, ResourceType
from tierlog.protocol.messages import create_delegation_token as create
from tierlog.protocol.messages import describe_delegation_token as describe
from tierlog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from tierlog.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tierlog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import plain
from tierlog.protocol.sasl.scram import ScramClient

USERS = ("admin", "ada", "bob", "eve")
KEY = "a key of at least sixteen bytes"
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{name}="{name}"' for name in USERS)
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
"""Each user's password is its name. The listener SASL has SASL_PLAINTEXT."""


class LoginFailed(Exception):
    """The message is the broker's."""


class Side:
    """`bootstrap`: of the listener SASL; `open_bootstrap`: of PLAINTEXT."""

    def __init__(self, bootstrap: str, open_bootstrap: str) -> None:
        self.bootstrap, self.open_bootstrap = bootstrap, open_bootstrap

    def user(self, name: str) -> "TokenClient":
        client = Client(self.bootstrap)
        client.send("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
        authenticate(client, plain.encode(name, name))
        return TokenClient(client)

    def by_token(
        self, token_id: str, hmac: bytes, mechanism: str = "SCRAM-SHA-256", *, extension: bool = True
    ) -> "TokenClient":
        """Raises LoginFailed."""
        client = Client(self.bootstrap)
        lifetime_ms = log_in_by_token(client, token_id, hmac, mechanism, extension=extension)
        return TokenClient(client, lifetime_ms)

    def anonymous(self) -> "TokenClient":
        return TokenClient(Client(self.open_bootstrap))

    def allow(self, user: str, operation: AclOperation, kind: ResourceType, name: str) -> None:
        acl = AclCreation(
            resource_type=kind,
            resource_name=name,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        with self.user("admin") as admin:
            response = admin.wire.send("CreateAcls", 3, CreateAclsRequest(creations=[acl]))
        assert not response.results[0].error_code, response


class TokenClient:
    """One connection. `lifetime_ms`: of its session."""

    def __init__(self, wire: Client, lifetime_ms: int = 0) -> None:
        self.wire = wire
        self.lifetime_ms = lifetime_ms

    def __enter__(self) -> "TokenClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def create(
        self,
        version: int = 3,
        *,
        owner: str | None = None,
        owner_type: str | None = "User",
        renewers: tuple[str, ...] = (),
        lifetime_ms: int = -1,
    ) -> Any:
        renewing = [one.partition(":") for one in renewers]
        request = create.CreateDelegationTokenRequest(
            owner_principal_type=owner_type if owner is not None else None,
            owner_principal_name=owner,
            renewers=[
                create.CreatableRenewers(principal_type=kind, principal_name=name)
                for kind, _, name in renewing
            ],
            max_lifetime_ms=lifetime_ms,
        )
        return self.wire.send("CreateDelegationToken", version, request)

    def renew(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
        return self.wire.send("RenewDelegationToken", version, request)

    def expire(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
        return self.wire.send("ExpireDelegationToken", version, request)

    def describe(self, *owners: str, everyone: bool = False, version: int = 3) -> Any:
        wanted = [
            describe.DescribeDelegationTokenOwner(principal_type="User", principal_name=name)
            for name in owners
        ]
        request = describe.DescribeDelegationTokenRequest(owners=None if everyone else wanted)
        return self.wire.send("DescribeDelegationToken", version, request)


def authenticate(client: Client, message: bytes, version: int = 2) -> Any:
    """Raises LoginFailed."""
    response = client.send("SaslAuthenticate", version, SaslAuthenticateRequest(auth_bytes=message))
    if response.error_code:
        raise LoginFailed(response.error_message)
    return response


def log_in_by_token(
    client: Client, token_id: str, hmac: bytes, mechanism: str, *, extension: bool = True
) -> int:
    """The lifetime of the session. Raises LoginFailed."""
    client.send("SaslHandshake", 1, SaslHandshakeRequest(mechanism=mechanism))
    password = base64.b64encode(bytes(hmac)).decode()
    scram = ScramClient(mechanism, token_id, password, secrets.token_hex(8), by_token=extension)
    respond: Callable[[Any], bytes] = lambda answer: scram.respond(bytes(answer.auth_bytes))  # noqa: E731
    last = authenticate(client, respond(authenticate(client, scram.start())))
    respond(last)
    assert scram.is_done
    return int(last.session_lifetime_ms)
