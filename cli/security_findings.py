"""Findings of `tierlog security check`: what stands open, is weak or expires, and what to do about it.

Pure: `security_facts` reads settings, files and the cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tierlog.base.addresses import is_confidential, is_loopback
from tierlog.cli.acls import RESOURCE_NAMES, Acl, operation_name
from tierlog.config.listeners import ListenerSettings, SecurityProtocol
from tierlog.config.node import BROKER, NodeSettings
from tierlog.config.tls import REQUIRED
from tierlog.metadata.acls import AclOperation, Permission
from tierlog.protocol.sasl.scram import DEFAULT_ITERATIONS

DAY_MS = 86_400_000
TOKEN_EXPIRES_MS = DAY_MS
"""Before its last day the owner renews a token. After it, users need another one."""

TOKEN_LIFETIME_MAX_MS = 30 * DAY_MS
"""A token with a longer life is as bad as a password that never changes. Kafka's default is 7 days."""

OAUTHBEARER = "OAUTHBEARER"
EVERYONE, ANONYMOUS, ANY_NAME = "User:*", "User:ANONYMOUS", "*"
HOW_TO = "docs/howto/secure-a-cluster.md"
_READS = (
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.DESCRIBE_TOKENS,
)


class Level(StrEnum):
    OPEN = "open"  # someone without permission can read, change or administer
    EXPIRED = "expired"
    WEAK = "weak"  # a barrier is lower than it can be
    EXPIRES = "expires"  # soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`check`: its name, for --ignore. `where`: nodes, a file or the cluster. `next`: the remedy."""

    check: str
    level: Level
    where: str
    what: str
    next: str

    def row(self) -> dict[str, str]:
        return {
            "level": self.level.value,
            "check": self.check,
            "where": self.where,
            "what": self.what,
            "next": self.next,
        }


CHECKS = (
    "no-login", "anonymous-tls", "no-tls", "passwords-in-clear", "no-authorizer", "open-by-default",
    "anonymous-super-user", "open-admin-api", "quorum-in-clear", "host-names-unchecked", "keys-over-http",
    "super-user-in-clear", "endless-logins", "endless-tokens", "any-token", "fast-guesses", "no-audit-log",
    "few-iterations", "acl-for-everyone", "acl-for-everything", "readable-file", "readable-data",
    "secret-in-settings", "certificate", "token",
)  # fmt: skip
"""Names of all checks."""


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; those that several nodes share once, with all of the nodes."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        shared = places.setdefault(replace(finding, where=""), [])
        if finding.where not in shared:
            shared.append(finding.where)
    levels = list(Level)
    merged = [replace(finding, where=", ".join(where)) for finding, where in places.items()]
    return sorted(merged, key=lambda one: (levels.index(one.level), CHECKS.index(one.check), one.where))


# ---- settings -------------------------------------------------------------------------------------


def of_settings(where: str, settings: NodeSettings) -> Iterator[Finding]:
    """Findings in the settings of one node."""
    if BROKER in settings.process_roles:
        for listener in settings.client_listeners:
            yield from _of_listener(where, settings, listener)
        yield from _of_authorizer(where, settings)
        yield from _of_tokens(where, settings)
    yield from _of_quorum(where, settings)
    if not settings.audit_log_dir:
        yield Finding(
            check="no-audit-log",
            level=Level.WEAK,
            where=where,
            what="no audit log: changes and failed logins cannot be traced to users and addresses",
            next="Set audit.log.dir on all nodes, as in docs/howto/audit-log.md.",
        )
    if not settings.ssl_endpoint_identification_algorithm and _uses_tls(settings):
        yield Finding(
            check="host-names-unchecked",
            level=Level.WEAK,
            where=where,
            what="brokers do not compare the host name in each other's certificates: every certificate of a "
            "trusted CA can pose as a broker",
            next="Remove ssl.endpoint.identification.algorithm, and name the hosts in the certificates.",
        )
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if url.startswith("http:") and not is_confidential(url):
        yield Finding(
            check="keys-over-http",
            level=Level.OPEN,
            where=where,
            what=f"the keys of tokens are read without TLS, from {url}: a changed answer allows forgeries",
            next="Set sasl.oauthbearer.jwks.endpoint.url to an https:// or file:// address.",
        )


def of_admin_api(where: str, settings: NodeSettings) -> Iterator[Finding]:
    """For a settings file. A running node is asked instead."""
    if not settings.admin_authentication and not settings.quorum_files:
        yield open_admin_api(where, settings.admin_listener)


def open_admin_api(where: str, address: str) -> Finding:
    return Finding(
        check="open-admin-api",
        level=Level.OPEN,
        where=where,
        what=f"the admin API at {address} needs no login: all that reach it can remove brokers and change "
        "voters",
        next="Set admin.authentication, and admin.admins to the administrators.",
    )


def _of_listener(where: str, settings: NodeSettings, listener: ListenerSettings) -> Iterator[Finding]:
    own = settings.for_listener(listener.name)
    protocol, address = listener.protocol, f"{listener.host}:{listener.port}"
    name = f"listener {listener.name} ({protocol}, {address})"
    if protocol is SecurityProtocol.PLAINTEXT:
        yield Finding(
            check="no-login",
            level=Level.OPEN,
            where=where,
            what=f"{name} needs no login: every client is {ANONYMOUS}",
            next=f"Replace it by a listener with SASL_SSL, as in {HOW_TO}.",
        )
    if protocol is SecurityProtocol.SSL and own.ssl_client_auth != REQUIRED:
        yield Finding(
            check="anonymous-tls",
            level=Level.OPEN,
            where=where,
            what=f"{name} needs no certificate of the client: a client without one is {ANONYMOUS}",
            next="Set ssl.client.auth=required, or use SASL_SSL.",
        )
    if protocol.has_sasl:
        yield from _of_logins(where, name, own)
    if protocol is not SecurityProtocol.SASL_PLAINTEXT:
        return
    if "PLAIN" in own.sasl_enabled_mechanisms:
        yield Finding(
            check="passwords-in-clear",
            level=Level.OPEN,
            where=where,
            what=f"{name} accepts PLAIN without TLS: passwords can be read on the network",
            next="Use SASL_SSL, or remove PLAIN from sasl.enabled.mechanisms.",
        )
    if not is_loopback(listener.host):
        yield Finding(
            check="no-tls",
            level=Level.WEAK,
            where=where,
            what=f"{name} does not encrypt: records can be read and changed on the network",
            next="Use SASL_SSL, with ssl.keystore.location.",
        )
        if settings.authorizer_class_name and settings.super_user_names - {ANONYMOUS, EVERYONE}:
            yield Finding(
                check="super-user-in-clear",
                level=Level.OPEN,
                where=where,
                what=f"super users can log in on {name}: an attacker on the network can take over their "
                "connections, and do everything",
                next="Use SASL_SSL on each listener that is not on a loopback address.",
            )


def _of_logins(where: str, name: str, own: NodeSettings) -> Iterator[Finding]:
    """Logins of a SASL listener. `own`: the settings with those of the listener."""
    mechanisms = frozenset(own.sasl_enabled_mechanisms)
    if mechanisms - {OAUTHBEARER} and not own.connections_max_reauth_ms:
        yield Finding(
            check="endless-logins",
            level=Level.WEAK,
            where=where,
            what=f"a login on {name} is valid for as long as its connection: a user that is deleted stays "
            "connected",
            next="Set connections.max.reauth.ms, such as 3600000. Clients must log in again (KIP-368): "
            "kafka-python connects again.",
        )
    if mechanisms - {OAUTHBEARER} and not own.connection_failed_authentication_delay_ms:
        yield Finding(
            check="fast-guesses",
            level=Level.WEAK,
            where=where,
            what=f"{name} answers failed logins at once: passwords can be guessed fast",
            next="Remove connection.failed.authentication.delay.ms, whose default is 100.",
        )
    unset = [
        setting
        for setting, value in (
            ("sasl.oauthbearer.expected.issuer", own.sasl_oauthbearer_expected_issuer),
            ("sasl.oauthbearer.expected.audience", own.sasl_oauthbearer_expected_audience),
        )
        if not value
    ]
    if OAUTHBEARER in mechanisms and unset:
        yield Finding(
            check="any-token",
            level=Level.WEAK,
            where=where,
            what=f"{name} accepts tokens that the issuer of its keys made for other services",
            next=f"Set {' and '.join(unset)}.",
        )


def _of_tokens(where: str, settings: NodeSettings) -> Iterator[Finding]:
    """Delegation tokens. A broker does not show its key, so the limit counts on brokers without one, too."""
    days = settings.delegation_token_max_lifetime_ms // DAY_MS
    if settings.delegation_token_max_lifetime_ms > TOKEN_LIFETIME_MAX_MS:
        yield Finding(
            check="endless-tokens",
            level=Level.WEAK,
            where=where,
            what=f"a delegation token can live for {days:,} days: a stolen one is good for as long",
            next="Lower delegation.token.max.lifetime.ms to 604800000 (7 days), and give jobs new tokens.",
        )


def _of_authorizer(where: str, settings: NodeSettings) -> Iterator[Finding]:
    if not settings.authorizer_class_name:
        yield Finding(
            check="no-authorizer",
            level=Level.OPEN,
            where=where,
            what="no authorizer: every client may do everything",
            next="Set authorizer.class.name and super.users, and add ACLs.",
        )
        return
    if settings.allow_everyone_if_no_acl_found:
        yield Finding(
            check="open-by-default",
            level=Level.OPEN,
            where=where,
            what="every client may use all resources that no ACL names (allow.everyone.if.no.acl.found)",
            next="Add the ACLs of all applications, then remove the setting.",
        )
    for name in sorted(settings.super_user_names & {ANONYMOUS, EVERYONE}):
        yield Finding(
            check="anonymous-super-user",
            level=Level.OPEN,
            where=where,
            what=f"{name} is a super user",
            next="Let brokers and administrators log in, and remove it from super.users.",
        )


def _of_quorum(where: str, settings: NodeSettings) -> Iterator[Finding]:
    """Nodes of a quorum need its secret, by which they sign."""
    if not settings.controller_quorum_voters or settings.quorum_files or is_loopback(settings.admin[0]):
        return
    yield Finding(
        check="quorum-in-clear",
        level=Level.WEAK,
        where=where,
        what="messages between the nodes of the quorum are signed, and not encrypted: metadata, with the "
        "verifiers of passwords, can be read on the network",
        next="Set controller.quorum.ssl.certificate, .key and .ca, as in docs/howto/quorum-tls.md.",
    )


def _uses_tls(settings: NodeSettings) -> bool:
    return any(listener.protocol.has_tls for listener in settings.client_listeners)


# ---- users, ACLs, what expires --------------------------------------------------------------------


def of_users(rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """`rows`: as `tierlog user list --json`."""
    for row in rows:
        few = {one["mechanism"]: one["iterations"] for one in row["mechanisms"]}
        few = {name: count for name, count in few.items() if count < DEFAULT_ITERATIONS}
        if few:
            listed = ", ".join(f"{name} with {count:,}" for name, count in few.items())
            yield Finding(
                check="few-iterations",
                level=Level.WEAK,
                where=f"user {row['user']}",
                what=f"few iterations: {listed}. Guesses by a copy of the metadata are cheap",
                next=f"Set the password again: `tierlog user alter {row['user']} --iterations 16384`. Ignore "
                "it for long random passwords.",
            )


def of_acls(acls: Iterable[Acl]) -> Iterator[Finding]:
    for acl in acls:
        if acl.permission is not Permission.ALLOW:
            continue
        operation, resource = operation_name(acl.operation), RESOURCE_NAMES.get(acl.resource, "resource")
        where = f"{resource} {acl.name}"
        if acl.principal == EVERYONE:
            from_where = "" if acl.host == "*" else f" from {acl.host}"
            yield Finding(
                check="acl-for-everyone",
                level=Level.WEAK if acl.operation in _READS else Level.OPEN,
                where=where,
                what=f"an ACL allows every client{from_where} the operation {operation}",
                next="Allow it to the users that need it, and remove this ACL (`tierlog acl delete`).",
            )
        elif acl.name == ANY_NAME and acl.operation is AclOperation.ALL:
            yield Finding(
                check="acl-for-everything",
                level=Level.WEAK,
                where=where,
                what=f"an ACL allows {acl.principal} all operations on every {resource}",
                next="Name the resources and operations that it needs, and remove this ACL.",
            )


def of_certificate(where: str, days_left: int, days: int, what: str, remedy: str) -> Iterator[Finding]:
    """A finding if it expires within `days`. `days_left` is negative if it has expired."""
    if days_left >= days:
        return
    has_expired = days_left < 0
    when = "has expired" if has_expired else f"expires in {days_left} days"
    yield Finding(
        check="certificate",
        level=Level.EXPIRED if has_expired else Level.EXPIRES,
        where=where,
        what=f"{what} {when}",
        next=remedy,
    )


def of_tokens(tokens: Iterable[Any], now_ms: int) -> Iterator[Finding]:
    """`tokens`: as DescribeDelegationToken returns them."""
    for token in tokens:
        left_ms = token.max_timestamp - now_ms
        if left_ms > TOKEN_LIFETIME_MAX_MS:
            yield Finding(
                check="endless-tokens",
                level=Level.WEAK,
                where=f"token {token.token_id}",
                what=f"the token of {token.principal_type}:{token.principal_name} can live for "
                f"{left_ms // DAY_MS:,} days more",
                next="Create one with a shorter --max-lifetime for its users, then remove this one "
                "(`tierlog token expire`).",
            )
        if left_ms < TOKEN_EXPIRES_MS:
            has_expired = left_ms < 0
            yield Finding(
                check="token",
                level=Level.EXPIRED if has_expired else Level.EXPIRES,
                where=f"token {token.token_id}",
                what=f"the token of {token.principal_type}:{token.principal_name} "
                + (
                    "has expired"
                    if has_expired
                    else "expires within a day, and cannot be renewed beyond that"
                ),
                next="Create another one for its users.",
            )
