"""Changes of access control lists: CreateAcls and DeleteAcls (KIP-140, KIP-290).

Refuses what Kafka refuses, and also:

- principals of other types than User, and hosts that are neither an address nor `*`: such a rule would never
  apply, not even a denial;
- more ACLs than `ACLS_MAX`, and texts longer than `TEXT_MAX`, which every node would keep in memory.

Both commands can be repeated: an ACL that exists is not added again, and one that is gone is not removed.
"""

from msgspec.structs import replace

from tierlog.metadata import records as r
from tierlog.metadata.acl_index import (
    AclIndex,
    in_order,
    patterns_to_read,
    selected_entries,
)
from tierlog.metadata.acls import (
    CLUSTER_NAME,
    TEXT_MAX,
    USER,
    WILDCARD,
    AccessControlEntry,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

ACLS_MAX = 50_000
"""Every node keeps all ACLs in memory, about 1 KB each, and reads all of them for some filters."""

DELETED_PER_COMMAND = 1_000
"""A command is decided and applied in one turn of the event loop. This many take about 20 ms. A filter that
reads all of ACLS_MAX takes about 0.1 s: brokers send none (`handlers.acls`)."""


def create(image: ClusterImage, command: c.CreateAcls) -> Decision[c.AclsCreated]:
    """Each ACL is added or refused independently of the others."""
    check_format(image, 3)
    added, outcomes = dict[AccessControlEntry, None](), []
    for entry in command.entries:
        try:
            known = _valid(entry)
            if known not in added and known not in image.acls:
                _check_count(len(image.acls) + len(added))
                added[known] = None
            outcomes.append(c.OK)
        except Refusal as refusal:
            outcomes.append(c.Outcome(error=refusal.error, message=refusal.message))
    records = tuple(r.AclAdded(entry=entry) for entry in added)
    return Decision(records, c.AclsCreated(entries=tuple(outcomes)))


def delete(image: ClusterImage, command: c.DeleteAcls) -> Decision[c.AclsDeleted]:
    """Remove up to DELETED_PER_COMMAND of the ACLs that the filters select. An ACL that several filters
    select is in the outcome of each."""
    check_format(image, 3)
    deleted: dict[AccessControlEntry, None] = {}
    outcomes = []
    for wanted in command.filters:
        try:
            outcomes.append(_delete(image.acls, valid_filter(wanted), deleted))
        except Refusal as refusal:
            outcomes.append(c.FilterOutcome(error=refusal.error, message=refusal.message))
    records = tuple(r.AclRemoved(entry=entry) for entry in deleted)
    return Decision(records, c.AclsDeleted(filters=tuple(outcomes)))


def valid_filter(wanted: AclFilter) -> AclFilter:
    """The filter, with its host as ACLs have it. Raises Refusal."""
    if wanted.resource == ResourceType.UNKNOWN or wanted.pattern == PatternType.UNKNOWN:
        raise _invalid("Unknown patternFilter.")
    if wanted.operation == AclOperation.UNKNOWN or wanted.permission == Permission.UNKNOWN:
        raise _invalid("Unknown entryFilter.")
    if wanted.host is None:
        return wanted
    return replace(wanted, host=canonical_host(wanted.host) or wanted.host)


def _delete(index: AclIndex, wanted: AclFilter, deleted: dict[AccessControlEntry, None]) -> c.FilterOutcome:
    own: list[AccessControlEntry] = []
    for pattern in in_order(patterns_to_read(index, wanted)):
        for entry in selected_entries(index, pattern, wanted):
            if entry not in deleted and len(deleted) >= DELETED_PER_COMMAND:
                return c.FilterOutcome(deleted=tuple(own), has_more=True)
            deleted[entry] = None
            own.append(entry)
    return c.FilterOutcome(deleted=tuple(own))


def _valid(entry: AccessControlEntry) -> AccessControlEntry:
    """The ACL, with its host in canonical form. Raises Refusal, with the messages of Kafka's
    AclControlManager."""
    if entry.resource in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resourceType {entry.resource.name}")
    if entry.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {entry.pattern.name}")
    if entry.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        raise _invalid(f"Invalid operation {entry.operation.name}")
    if entry.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {entry.permission.name}")
    if not entry.name:
        raise _invalid("Resource name should not be empty")
    if entry.resource == ResourceType.CLUSTER and entry.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in entry.principal:
        raise _invalid(
            f"Could not parse principal from `{entry.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if not entry.principal.startswith(USER):
        name = entry.principal[:TEXT_MAX]
        raise _invalid(f"the principal `{name}` is not of type User, the only type that clients have")
    for title, text in (("resource name", entry.name), ("principal", entry.principal)):
        if len(text) > TEXT_MAX:
            message = f"the {title} has {len(text)} characters; {TEXT_MAX} are allowed"
            raise Refusal(ErrorCode.POLICY_VIOLATION, message)
    host = entry.host if entry.host == WILDCARD else canonical_host(entry.host)
    if host is None:
        message = f"{entry.host[:TEXT_MAX]} is not an IP address; host names are not resolved"
        raise _invalid(message)
    return replace(entry, host=host)


def _check_count(count: int) -> None:
    if count >= ACLS_MAX:
        message = f"there are {ACLS_MAX} ACLs already: delete some, or replace many by one prefixed pattern"
        raise Refusal(ErrorCode.POLICY_VIOLATION, message)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
