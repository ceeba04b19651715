"""`tierlog quota …`: lists, sets and removes client quotas."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.options import Bootstrap, ClientConfig, Json, ValidateOnly, parse_pairs
from tierlog.cli.output import counted, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.quotas import Entity

app = typer.Typer(no_args_is_help=True, help="List, set and remove client quotas.")
EXAMPLE = "producer_byte_rate=1048576"
User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="A user.")]
UserDefaults = Annotated[
    bool, typer.Option("--user-defaults", help="All users without a quota of their own.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", "-c", metavar="ID", help="A client id; with --user, only of that user."),
]
ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="All client ids without a quota of their own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An IP address.")]
IpDefaults = Annotated[
    bool, typer.Option("--ip-defaults", help="All IP addresses without a quota of their own.")
]


@app.command("list")
def list_(
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List all quotas, or those of the given user, client id or IP address."""
    from tierlog.cli import quotas
    from tierlog.cli.client import KafkaClient

    entity = _entity(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = quotas.rows(client, entity)
    if as_json:
        print_json(found)
        return
    lines = [
        {"entity": quotas.title(row["entity"]), "quota": key, "value": value}
        for row in found
        for key, value in row["quotas"].items()
    ]
    columns = {"entity": "entity", "quota": "quota", "value": "value"}
    print_rows(columns, lines, title=counted(len(lines), "quota"))


@app.command("set")
def set_(
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage, "
            "controller_mutation_rate (partitions per second); for an IP address, connection_creation_rate.",
        ),
    ],
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    validate_only: ValidateOnly = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an IP address.

    They apply at once, per broker.
    """
    from tierlog.cli import quotas
    from tierlog.cli.client import KafkaClient

    entity = _one(_entity(user, user_defaults, client_id, client_defaults, ip, ip_defaults))
    sets = {key: _number(key, text) for key, text in parse_pairs(values, "quota", EXAMPLE).items()}
    with KafkaClient(bootstrap, changes=not validate_only) as client:
        quotas.change(client, entity, sets, validate_only=validate_only)
    name = quotas.title(entity)
    print_outcome(
        f"quotas of {name} are valid (nothing changed)" if validate_only else f"quotas of {name} set",
        {
            "entity": entity,
            "set": {key: quotas.plain(value) for key, value in sets.items()},
            "changed": not validate_only,
        },
        as_json=as_json,
    )


@app.command()
def remove(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Quotas to remove. Default: all.")
    ] = None,
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove quotas. A less specific quota may then apply."""
    from tierlog.cli import quotas
    from tierlog.cli.client import KafkaClient

    entity = _one(_entity(user, user_defaults, client_id, client_defaults, ip, ip_defaults))
    name = quotas.title(entity)
    with KafkaClient(bootstrap, changes=True) as client:
        present = [key for row in quotas.rows(client, entity, strict=True) for key in row["quotas"]]
        wanted = keys or present
        missing = [key for key in wanted if key not in present]
        if missing or not wanted:
            raise CliError(
                f"{name} has no quota {', '.join(missing)}".strip(),
                hint="List quotas with `tierlog quota list`.",
                code=ExitCode.NOT_FOUND,
            )
        quotas.change(client, entity, dict.fromkeys(wanted))
    print_outcome(f"quotas of {name} removed", {"entity": entity, "removed": wanted}, as_json=as_json)


def _entity(
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> "Entity":
    entity: Entity = {}
    for kind, name, defaults in (
        ("user", user, user_defaults),
        ("client-id", client_id, client_defaults),
        ("ip", ip, ip_defaults),
    ):
        if name is not None and defaults:
            raise usage(
                f"--{kind} and --{kind.removesuffix('-id')}-defaults exclude each other", hint="Give one."
            )
        if name is not None or defaults:
            entity[kind] = name
    if "ip" in entity and len(entity) > 1:
        raise usage(
            "an IP address cannot be combined with a user or client id",
            hint="Use a separate command for each.",
        )
    return entity


def _one(entity: "Entity") -> "Entity":
    if not entity:
        raise usage(
            "no user, client id or IP address given",
            hint="For example: --user ada, --client-defaults, or --ip ::1",
        )
    return entity


def _number(key: str, text: str) -> float:
    from tierlog.cli.quotas import KEYS

    if key not in KEYS:
        raise usage(f"unknown quota {key!r}", hint=f"The quotas are {', '.join(KEYS)}.")
    try:
        number = float(text)
        if math.isnan(number):
            raise ValueError(text)
    except ValueError:
        raise usage(
            f"invalid value of {key}: {text!r} is not a number",
            hint=f"For example: {EXAMPLE}",
        ) from None
    return number
