"""A node for which users log in by SCRAM, with a certificate or with a token, each over TLS on its own
listener, and what its clients need.

It has the topics OPEN and SECRET. USER is the same user in all three ways. It may use OPEN and the groups of
GROUPS, and does not know whether SECRET exists.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cli_inline import call
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from issuer import AUDIENCE, ISSUER, key_set, token

from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.cluster_files import free_ports
from tierlog.cli.process import TierlogBroker
from tierlog.config.authorization import STANDARD_AUTHORIZER

USER, PASSWORD = "ada", "canary-of-ada"
ADMIN, ADMIN_PASSWORD = "admin", "canary-of-admin"
OPEN, SECRET, GROUPS = "open", "secret", "readers-"
SCRAM, MTLS, OAUTHBEARER = "scram", "mtls", "oauthbearer"
WAYS = (SCRAM, MTLS, OAUTHBEARER)
MECHANISMS = {SCRAM: "SCRAM-SHA-512", MTLS: "", OAUTHBEARER: "OAUTHBEARER"}
LIMIT_S = 30.0


@dataclass(frozen=True)
class Login:
    """How USER connects. `mechanism` is empty without SASL. The token endpoint answers each POST."""

    bootstrap: str
    mechanism: str
    ca: str
    certificate: str
    """Private key and certificate in one file."""
    token_endpoint: str
    user: str = USER
    password: str = PASSWORD
    is_token: bool = False
    """Whether user and password are the id and the HMAC of a delegation token."""

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.mechanism else "SSL"

    def librdkafka_json(self) -> str:
        return json.dumps(self.librdkafka())

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def librdkafka(self) -> dict[str, Any]:
        """Settings of librdkafka."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca,
        }
        if not self.mechanism:
            return settings | {
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.certificate,
            }
        settings["sasl.mechanism"] = self.mechanism
        if self.mechanism != MECHANISMS[OAUTHBEARER]:
            return settings | {"sasl.username": self.user, "sasl.password": self.password}
        return settings | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.user,
            "sasl.oauthbearer.client.secret": self.password,
            "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
        }

    def java(self) -> dict[str, str]:
        """Settings of the Java client."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
        }
        if not self.mechanism:
            return settings | {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        settings["sasl.mechanism"] = self.mechanism
        security = "org.apache.kafka.common.security"
        if self.mechanism != MECHANISMS[OAUTHBEARER]:
            module = f"{security}.scram.ScramLoginModule"
            words = f'{module} required username="{self.user}" password="{self.password}";'
            return settings | {"sasl.jaas.config": words}
        return settings | {
            "sasl.jaas.config": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{security}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
            "sasl.oauthbearer.client.credentials.client.id": self.user,
            "sasl.oauthbearer.client.credentials.client.secret": self.password,
        }


@dataclass(frozen=True)
class SecureNode:
    broker: TierlogBroker
    logins: dict[str, Login]
    """By the way of logging in."""

    @property
    def of_admin(self) -> Login:
        return replace(self.logins[SCRAM], user=ADMIN, password=ADMIN_PASSWORD)


@contextmanager
def secure_node(directory: Path) -> Iterator[SecureNode]:
    directory.mkdir(parents=True, exist_ok=True)
    authority = LocalAuthority(directory / "certificates", int(time.time()), 30)
    certificates = authority.directory
    authority.issue("broker", ("localhost", "127.0.0.1"))
    authority.issue(USER)
    (directory / "keys.json").write_bytes(key_set())
    (directory / "password").write_text(f"{ADMIN_PASSWORD}\n")
    ports = free_ports(2)
    broker = TierlogBroker(directory / "broker", settings_of(directory, ports))
    first_user = f"SCRAM-SHA-512=[name={ADMIN},password-file={directory / 'password'}]"
    ended = call("storage", "format", "--set", f"log.dirs={broker.data_dir}", "--add-scram", first_user)
    assert ended.code == 0, ended
    with ExitStack() as running:
        running.enter_context(broker)
        endpoint = running.enter_context(token_endpoint())
        addresses = [broker.bootstrap, *(f"127.0.0.1:{port}" for port in ports)]
        logins = {
            way: Login(
                address,
                MECHANISMS[way],
                str(certificates / "ca.pem"),
                str(certificates / f"{USER}.pem"),
                endpoint,
            )
            for way, address in zip(WAYS, addresses, strict=True)
        }
        node = SecureNode(broker, logins)
        furnish(AdminClient(node.of_admin.librdkafka()))
        yield node
    assert "canary" not in broker.log_path.read_text()


def settings_of(directory: Path, ports: list[int]) -> dict[str, object]:
    local, certificates = "127.0.0.1", directory / "certificates"
    return {
        "listeners": f"USERS://{local}:0,CERTIFICATES://{local}:{ports[0]},TOKENS://{local}:{ports[1]}",
        "listener.security.protocol.map": "USERS:SASL_SSL,CERTIFICATES:SSL,TOKENS:SASL_SSL",
        "ssl.keystore.location": certificates / "broker.pem",
        "ssl.truststore.location": certificates / "ca.pem",
        "listener.name.certificates.ssl.client.auth": "required",
        "listener.name.certificates.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "listener.name.users.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN}",
        "delegation.token.secret.key": "canary-key-of-tokens",
        "group.initial.rebalance.delay.ms": 0,
    }


def furnish(admin: AdminClient) -> None:
    """Create the user, the topics and the ACLs."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin.alter_user_scram_credentials([change])[USER].result(LIMIT_S)
    for created in admin.create_topics([NewTopic(OPEN, 1), NewTopic(SECRET, 1)]).values():
        created.result(LIMIT_S)
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    acls = [
        AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in (
            (ResourceType.TOPIC, OPEN, literal, AclOperation.READ),
            (ResourceType.TOPIC, OPEN, literal, AclOperation.WRITE),
            (ResourceType.GROUP, GROUPS, prefixed, AclOperation.READ),
        )
    ]
    for created in admin.create_acls(acls).values():
        created.result(LIMIT_S)


@contextmanager
def token_endpoint() -> Iterator[str]:
    """The URL of an issuer that gives USER a token for its id and secret (RFC 6749, section 4.4)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), TokenRequests)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/token"
    server.shutdown()
    thread.join()
    server.server_close()


class TokenRequests(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = {"access_token": token(time.time(), sub=USER), "token_type": "Bearer", "expires_in": 300}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
