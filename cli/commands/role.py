"""`tierlog security role …`: the roles of the admin API, and their principals.

Roles are settings of the nodes, as `super.users` is, so that no request to the cluster can give one. The
commands that would change them say which setting to change instead.
"""

from typing import Annotated, NamedTuple, NoReturn

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import Bootstrap, ClientConfig, Json, known_words
from tierlog.cli.output import counted, print_json, print_rows, print_status
from tierlog.config.admin_api import principals

app = typer.Typer(no_args_is_help=True, help="Show the roles of the admin API and their principals.")


class Role(NamedTuple):
    settings: tuple[str, ...]
    """Those that name its principals; the first one is its own."""
    may: str


ROLES = {
    "viewer": Role(("admin.viewers",), "read the admin API and the metrics"),
    "operator": Role(("admin.operators",), "also move, balance, drain, check and upload"),
    "admin": Role(("admin.admins", "super.users"), "everything"),
}
"""As in broker.gateway.roles; each includes those before it."""

NAMES = tuple(ROLES)
COLUMNS = {"role": "role", "principals": "principals", "brokers": "brokers", "may": "may"}
GUIDE = "docs/howto/secure-a-cluster.md"

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help=f"{', '.join(NAMES)}.")]
AnyName = Annotated[str, typer.Argument(metavar="NAME", help="Any name.")]
Principal = Annotated[
    str, typer.Option("--principal", metavar="NAME", help="The principal, such as User:ada or ada.")
]


@app.command("list")
def list_(as_json: Json = False, bootstrap: Bootstrap = None, client_config: ClientConfig = None) -> None:
    """List the roles and their principals, as the settings of all running brokers name them."""
    _print(NAMES, bootstrap, as_json)


@app.command()
def describe(
    role: RoleName, as_json: Json = False, bootstrap: Bootstrap = None, client_config: ClientConfig = None
) -> None:
    """Show a role's rights and its principals."""
    _print((_known(role),), bootstrap, as_json)


@app.command()
def assign(role: RoleName, principal: Principal) -> None:
    """Say how to give a role to a principal. Changes nothing."""
    _refuse_change(_known(role), f"Add {_full(principal)} to {{setting}}")


@app.command()
def unassign(role: RoleName, principal: Principal) -> None:
    """Say how to take a role from a principal. Changes nothing."""
    _refuse_change(_known(role), f"Remove {_full(principal)} from {{setting}}")


@app.command()
def create(name: AnyName) -> None:
    """Say what stands in for a role of ACLs. Changes nothing."""
    raise CliError(
        f"cannot create the role {name}: there are {', '.join(NAMES)}, and ACLs name principals only",
        hint="Give each principal its ACLs: `tierlog acl create --allow-principal NAME …`.",
    )


@app.command()
def delete(name: AnyName) -> None:
    """Say how to take a role from everyone. Changes nothing."""
    _refuse_change(_known(name), "Remove all principals from {setting}")


def _refuse_change(role: str, remedy: str) -> NoReturn:
    """Raises CliError."""
    setting = ROLES[role].settings[0]
    raise CliError(
        f"roles are settings of the nodes, which no command changes: {role} is {setting}",
        hint=f"{remedy.format(setting=setting)} (separated by semicolons) in the settings of all nodes, and "
        f"restart them one after the other ({GUIDE}).",
    )


def _known(role: str) -> str:
    return known_words([role], NAMES, "role")[0]


def _full(principal: str) -> str:
    return principal if principal.startswith("User:") else f"User:{principal}"


def _print(roles: tuple[str, ...], bootstrap: str | None, as_json: bool) -> None:
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.security_facts import settings_of

    with KafkaClient(bootstrap) as client:
        brokers = {
            broker.node_id: settings_of(client, broker.node_id) for broker in client.metadata([]).brokers
        }
    rows: list[dict[str, object]] = []
    for role in roles:
        brokers_of: dict[tuple[str, ...], list[int]] = {}
        for broker, settings in sorted(brokers.items()):
            names = [getattr(settings, setting.replace(".", "_")) for setting in ROLES[role].settings]
            found = dict.fromkeys(name for text in names for name in principals(text))
            brokers_of.setdefault(tuple(sorted(found)), []).append(broker)
        for found_principals, same in brokers_of.items():
            row = {"role": role, "principals": list(found_principals), "brokers": same}
            rows.append({**row, "settings": list(ROLES[role].settings), "may": ROLES[role].may})
    is_open = sorted(broker for broker, settings in brokers.items() if not settings.admin_authentication)
    if as_json:
        print_json({"roles": rows, "without_authentication": is_open})
        return
    shown = [
        {**row, **{name: ", ".join(map(str, row[name])) or "-" for name in ("principals", "brokers")}}  # type: ignore[call-overload]
        for row in rows
    ]
    print_rows(COLUMNS, shown, title=counted(len(roles), "role"))
    if is_open:
        print_status(
            f"admin.authentication is not set on {', '.join(map(str, is_open))}: there, every client that "
            "reaches the admin API may do everything"
        )
