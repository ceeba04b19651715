"""Roles of the admin HTTP API: which a request needs, and which a principal has.

A viewer reads; an operator also moves, balances, checks and uploads; an admin also adds and removes
voters, removes brokers, and runs the jobs that write history. Each role includes those before it. Health is
open to all, so that a load balancer needs no password. Nodes sign the requests of the quorum
(metadata.quorum.auth), for which no role is needed. A test (tests/unit/gateway/test_request_guard.py) fails
for a route without a role.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from tierlog.config.admin_api import principals
from tierlog.config.node import NodeSettings


class Role(IntEnum):
    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


OPEN_PATHS = frozenset({"/health"})
EVERYONE: Final = "User:*"
"""Every principal that is authenticated."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})

CHANGES: Mapping[tuple[str, str], Role] = {
    ("POST", "/v1/brokers/{id}/drain"): Role.OPERATOR,
    ("POST", "/v1/brokers/{id}/stop"): Role.OPERATOR,
    ("DELETE", "/v1/brokers/{id}"): Role.ADMIN,
    ("POST", "/v1/partitions/move"): Role.OPERATOR,
    ("POST", "/v1/partitions/unthrottle"): Role.OPERATOR,
    ("POST", "/v1/partitions/elect"): Role.OPERATOR,
    ("POST", "/v1/partitions/balance"): Role.OPERATOR,
    ("POST", "/v1/partitions/balance/load"): Role.OPERATOR,
    ("POST", "/v1/directories/move"): Role.OPERATOR,
    ("POST", "/v1/scrub"): Role.OPERATOR,
    ("POST", "/v1/self-test"): Role.OPERATOR,
    ("POST", "/v1/tier/scrub"): Role.OPERATOR,
    ("POST", "/v1/tier/verify"): Role.OPERATOR,
    ("POST", "/v1/tier/roots"): Role.OPERATOR,
    ("POST", "/v1/tier/documents"): Role.OPERATOR,
    ("POST", "/v1/tier/flush"): Role.OPERATOR,
    ("POST", "/v1/tier/snapshots"): Role.OPERATOR,
    ("DELETE", "/v1/tier/snapshots/{id}"): Role.OPERATOR,
    **{
        ("POST", f"/v1/tier/loads/{step}"): Role.ADMIN
        for step in ("begin", "announce", "renew", "cancel", "commit")
    },
    **{
        ("POST", f"/v1/tier/replacements/{step}"): Role.ADMIN
        for step in ("begin", "renew", "cancel", "commit")
    },
    ("POST", "/v1/versions/finalize"): Role.ADMIN,
    ("POST", "/v1/quorum/voters"): Role.ADMIN,
    ("DELETE", "/v1/quorum/voters/{id}"): Role.ADMIN,
}


def role_needed(method: str, path: str) -> Role:
    """`path`: the route's, with its parameters in braces. Changes that are not listed need an admin."""
    if path in OPEN_PATHS:
        return Role.NONE
    return Role.VIEWER if method in _READS else CHANGES.get((method, path), Role.ADMIN)


class Roles:
    """Roles of principals, from the settings of a node."""

    def __init__(self, principals: Mapping[Role, Iterable[str]]) -> None:
        """`principals`: `User:name`, or EVERYONE."""
        self._roles: dict[str, Role] = {}
        for role in sorted(principals):
            self._roles.update(dict.fromkeys(principals[role], role))

    def of(self, principal: str) -> Role:
        """The highest role that the principal has by its name or with everyone else."""
        everyone = self._roles.get(EVERYONE, Role.NONE)
        return max(self._roles.get(principal, Role.NONE), everyone)


def roles_of(settings: NodeSettings) -> Roles:
    """`tierlog security roles` (cli.admin_roles) shows the same roles and settings."""
    return Roles(
        {
            Role.VIEWER: principals(settings.admin_viewers),
            Role.OPERATOR: principals(settings.admin_operators),
            Role.ADMIN: [*principals(settings.admin_admins), *settings.super_user_names],
        }
    )
