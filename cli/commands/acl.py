"""`tierlog acl …`: creates, lists and deletes access control lists."""

from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.options import Bootstrap, ClientConfig, DryRun, Json, Yes, confirm
from tierlog.cli.output import counted, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.acls import Acl, Filter
    from tierlog.metadata.acls import AclOperation, Permission, ResourceType

app = typer.Typer(no_args_is_help=True, help="Create, list and delete access control lists.")


class Pattern(StrEnum):
    """Patterns of new ACLs."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class PatternFilter(StrEnum):
    """Patterns of ACLs to find."""

    ANY = "any"
    MATCH = "match"
    LITERAL = "literal"
    PREFIXED = "prefixed"


Names = list[str] | None
AllowPrincipal = Annotated[
    Names,
    typer.Option(
        "--allow-principal", metavar="NAME", help="A principal that may; User:NAME or NAME. May be repeated."
    ),
]
DenyPrincipal = Annotated[
    Names,
    typer.Option("--deny-principal", metavar="NAME", help="A principal that must not. May be repeated."),
]
AllowHost = Annotated[
    Names, typer.Option("--allow-host", metavar="ADDRESS", help="An address from which it may. Default: all.")
]
DenyHost = Annotated[
    Names, typer.Option("--deny-host", metavar="ADDRESS", help="An address from which it must not.")
]
Operation = Annotated[
    Names,
    typer.Option(
        "--operation", metavar="OPERATION", help="An operation, such as read or all. May be repeated."
    ),
]
Topic = Annotated[Names, typer.Option("--topic", "-t", metavar="NAME", help="A topic, or * for all.")]
Group = Annotated[Names, typer.Option("--group", "-g", metavar="ID", help="A group, or * for all.")]
TransactionalId = Annotated[
    Names, typer.Option("--transactional-id", metavar="ID", help="A transactional id, or * for all.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
User = Annotated[
    Names,
    typer.Option(
        "--user", metavar="NAME", help="A user, for its delegation tokens (create-tokens, describe-tokens)."
    ),
]
Token = Annotated[Names, typer.Option("--delegation-token", metavar="ID", help="A delegation token.")]
FindPattern = Annotated[
    PatternFilter,
    typer.Option(
        "--resource-pattern-filter",
        help="Patterns to find; match finds all that apply to a resource of this name.",
    ),
]
COLUMNS = {
    name: name for name in ("principal", "host", "resource", "name", "pattern", "operation", "permission")
}


@app.command()
def create(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operation = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    user: User = None,
    delegation_token: Token = None,
    pattern: Annotated[
        Pattern,
        typer.Option(
            "--resource-pattern-type", help="prefixed: the ACL applies to all names that begin with NAME."
        ),
    ] = Pattern.LITERAL,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Create ACLs: each principal, from each host, gets each operation on each resource."""
    from tierlog.cli import acls
    from tierlog.cli.client import KafkaClient
    from tierlog.metadata.acls import WILDCARD, PatternType, ResourceType

    resources = _resources(topic, group, transactional_id, cluster, user, delegation_token)
    holders = _holders(allow_principal, deny_principal, allow_host, deny_host)
    if not resources:
        raise usage("no resource given", hint="For example: --topic orders, --group readers, or --cluster")
    if not holders:
        raise usage("no principal given", hint="For example: --allow-principal ada")
    if not operation:
        raise usage("no operation given", hint="For example: --operation read --operation describe")
    kind = PatternType[pattern.upper()]
    made = [
        acls.Acl(
            resource,
            name,
            PatternType.LITERAL if resource == ResourceType.CLUSTER else kind,
            principal,
            host or WILDCARD,
            _valid_operation(resource, _operation(word)),
            permission,
        )
        for (resource, name), (principal, host, permission), word in product(resources, holders, operation)
    ]
    with KafkaClient(bootstrap, changes=True) as client:
        acls.create(client, made)
    rows = [acl.row() for acl in made]
    print_outcome(f"{counted(len(rows), 'ACL')} created", {"created": rows}, as_json=as_json)


@app.command("list")
def list_(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operation = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    user: User = None,
    delegation_token: Token = None,
    pattern: FindPattern = PatternFilter.ANY,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List all ACLs, or those with these principals, hosts, operations and resources."""
    from tierlog.cli import acls
    from tierlog.cli.client import KafkaClient

    resources = _resources(topic, group, transactional_id, cluster, user, delegation_token)
    holders = _holders(allow_principal, deny_principal, allow_host, deny_host, default_host=None)
    filters = _filters(resources, holders, operation, pattern)
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = acls.find(client, filters)
    print_rows(COLUMNS, [acl.row() for acl in found], title=counted(len(found), "ACL"), as_json=as_json)


@app.command()
def delete(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operation = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    user: User = None,
    delegation_token: Token = None,
    pattern: Annotated[
        PatternFilter | None,
        typer.Option(
            "--resource-pattern-filter",
            help="Patterns to find. Default: literal for named resources, and any if none is named.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete the ACLs with these principals, hosts, operations and resources."""
    from tierlog.cli import acls
    from tierlog.cli.client import KafkaClient

    resources = _resources(topic, group, transactional_id, cluster, user, delegation_token)
    holders = _holders(allow_principal, deny_principal, allow_host, deny_host, default_host=None)
    if not (resources or holders or operation):
        raise usage(
            "nothing selects the ACLs to delete", hint="For example: --allow-principal ada --topic orders"
        )
    default = PatternFilter.LITERAL if resources else PatternFilter.ANY
    filters = _filters(resources, holders, operation, pattern or default)
    with KafkaClient(bootstrap, changes=not dry_run) as client:
        found = acls.find(client, filters)
        if not found:
            raise CliError(
                "no ACL matches", hint="List ACLs with `tierlog acl list`.", code=ExitCode.NOT_FOUND
            )
        if not dry_run:
            if not yes:
                _print("ACLs to delete", found)
                confirm(f"Delete {counted(len(found), 'ACL')}?")
            found = acls.delete(client, found)
    if as_json:
        print_json({"deleted": [acl.row() for acl in found], "changed": not dry_run})
    else:
        _print(f"{counted(len(found), 'ACL')} {'would be deleted' if dry_run else 'deleted'}", found)


def _print(title: str, found: "list[Acl]") -> None:
    print_rows(COLUMNS, [acl.row() for acl in found], title=title)


def _resources(
    topics: Names, groups: Names, transactional_ids: Names, cluster: bool, users: Names, tokens: Names
) -> "list[tuple[ResourceType, str]]":
    from tierlog.metadata.acls import CLUSTER_NAME, WILDCARD, ResourceType

    named = (
        (ResourceType.TOPIC, topics),
        (ResourceType.GROUP, groups),
        (ResourceType.TRANSACTIONAL_ID, transactional_ids),
        (ResourceType.CLUSTER, [CLUSTER_NAME] if cluster else None),
        (ResourceType.USER, [name if name == WILDCARD else _principal(name) for name in users or ()]),
        (ResourceType.DELEGATION_TOKEN, tokens),
    )
    return [(resource, name) for resource, names in named for name in names or ()]


def _holders(
    allowed: Names, denied: Names, allow_hosts: Names, deny_hosts: Names, default_host: str | None = "*"
) -> "list[tuple[str, str | None, Permission]]":
    """Principals with a host and a permission. A name may have colons, as in `system:serviceaccount:a:b`."""
    from tierlog.metadata.acls import Permission

    if (allow_hosts and not allowed) or (deny_hosts and not denied):
        kind = "allow" if allow_hosts and not allowed else "deny"
        raise usage(f"--{kind}-host needs --{kind}-principal", hint=f"For example: --{kind}-principal '*'")
    return [
        (_principal(name), host, permission)
        for names, hosts, permission in (
            (allowed, allow_hosts, Permission.ALLOW),
            (denied, deny_hosts, Permission.DENY),
        )
        for name in names or ()
        for host in (hosts or (default_host,))
    ]


def _principal(name: str) -> str:
    from tierlog.metadata.acls import USER

    return name if name.startswith(USER) else f"{USER}{name}"


def _filters(
    resources: "list[tuple[ResourceType, str]]",
    holders: "list[tuple[str, str | None, Permission]]",
    operations: Names,
    pattern: PatternFilter,
) -> "list[Filter]":
    from tierlog.cli.acls import Filter
    from tierlog.metadata.acls import AclOperation, PatternType, Permission, ResourceType

    kind = PatternType[pattern.upper()]
    every_resource: list[tuple[ResourceType, str | None]] = [*resources] or [(ResourceType.ANY, None)]
    every_holder: list[tuple[str | None, str | None, Permission]] = [*holders] or [
        (None, None, Permission.ANY)
    ]
    every_operation = [_operation(word) for word in operations or ()] or [AclOperation.ANY]
    return [
        Filter(resource, name, kind, principal, host, operation, permission)
        for (resource, name), (principal, host, permission), operation in product(
            every_resource, every_holder, every_operation
        )
    ]


def _operation(word: str) -> "AclOperation":
    from tierlog.metadata.acls import AclOperation

    known = {each.name: each for each in AclOperation if each > AclOperation.ANY}
    found = known.get(word.upper().replace("-", "_"))
    if found is None:
        names = ", ".join(name.lower().replace("_", "-") for name in known)
        raise usage(f"unknown operation {word!r}", hint=f"The operations are {names}.")
    return found


def _valid_operation(resource: "ResourceType", operation: "AclOperation") -> "AclOperation":
    """The operation, if it exists for the resource type. An ACL with another one would never apply."""
    from tierlog.cli.acls import RESOURCE_NAMES, operation_name
    from tierlog.metadata.acls import OPERATIONS_OF, AclOperation

    existing = (AclOperation.ALL, *OPERATIONS_OF[resource])
    if operation not in existing:
        raise usage(
            f"operation {operation_name(operation)} does not exist for a {RESOURCE_NAMES[resource]}",
            hint=f"Its operations are {', '.join(map(operation_name, existing))}.",
        )
    return operation
