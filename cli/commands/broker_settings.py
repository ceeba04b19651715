"""`tierlog broker settings|alter`: dynamic settings of one broker or of all (KIP-226)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import unknown_broker, usage
from tierlog.cli.options import INT32_MAX, Bootstrap, ClientConfig, Json, complete_node_settings, parse_pairs
from tierlog.cli.output import print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient

SOURCES = {2: "this broker", 3: "all brokers", 4: "start-up", 5: "default"}
"""Config source (DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT) -> text."""

START_UP_HINT = (
    "Give valid values of dynamic settings, which `tierlog broker settings BROKER --all` shows. For the "
    "others, change the node's file and restart it: docs/howto/hosts.md"
)

OneOrAll = Annotated[
    int | None,
    typer.Argument(metavar="[BROKER]", min=0, max=INT32_MAX, help="Id of the broker. Default: all brokers."),
]


def settings(
    broker: OneOrAll = None,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Include settings that have their default.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the dynamic settings of all brokers, or all non-default settings of one broker."""
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        rows = [row for row in described(client, broker) if all_settings or row["source"] != SOURCES[5]]
    columns = {"name": "setting", "value": "value", "source": "source", "runs": "dynamic"}
    title = "Settings of all brokers" if broker is None else f"Settings of broker {broker}"
    print_rows(columns, rows, title=title, as_json=as_json)


def alter(
    broker: OneOrAll = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KEY=VALUE",
            autocompletion=complete_node_settings,
            help="Set a setting. May be repeated.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", "-u", metavar="KEY", help="Return to the value from start-up. May be repeated."
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Change dynamic settings of one broker or of all, while they run.

    They survive restarts, and a broker's own value overrides the one for all brokers.
    """
    from tierlog.cli import configs
    from tierlog.cli.client import KafkaClient

    if not config and not unset:
        raise usage("nothing to change", hint="Give --config KEY=VALUE or --unset KEY.")
    sets = parse_pairs(config, "--config", "--config max.connections=5000")
    _check_known(sets)
    with KafkaClient(bootstrap, changes=True) as client:
        _require(client, broker)
        own = {row["name"] for row in described(client, broker)} if unset else set()
        _check_known(name for name in unset or () if name not in own)
        configs.alter(
            client,
            configs.BROKER_RESOURCE,
            _name(broker),
            "settings not changed",
            sets=sets,
            unsets=unset or (),
            broker=broker,
            hint=START_UP_HINT,
        )
    name = "all brokers" if broker is None else f"broker {broker}"
    document = {"broker": broker, "set": sets, "unset": unset or []}
    print_outcome(f"settings of {name} changed", document, as_json=as_json)


def described(client: "KafkaClient", broker: int | None) -> list[dict[str, Any]]:
    """Settings of one broker with their sources, or the dynamic ones of all brokers. A hidden value is
    None."""
    from tierlog.cli import configs

    _require(client, broker)
    kind, what = configs.BROKER_RESOURCE, f"settings of broker {broker}"
    return [
        {
            "name": config.name,
            "value": config.value,
            "source": SOURCES.get(config.config_source, str(config.config_source)),
            "runs": not config.read_only,
        }
        for config in configs.described(client, kind, _name(broker), what, broker=broker)
    ]


def _check_known(names: Iterable[str]) -> None:
    from tierlog.cli import configs
    from tierlog.config.kafka_names import INERT_SETTINGS
    from tierlog.config.node import NODE_SETTINGS
    from tierlog.config.sources import ALIASES

    hint = "List all settings with `tierlog broker settings BROKER --all`."
    real = (name for name in names if name not in ALIASES)
    configs.check_known(real, {**NODE_SETTINGS, **INERT_SETTINGS}, hint)


def _require(client: "KafkaClient", broker: int | None) -> None:
    """Raises CliError unless the broker runs: only the broker itself knows its start-up settings."""
    if broker is not None and broker not in {one.node_id for one in client.metadata([]).brokers}:
        raise unknown_broker(broker, "is not registered, or not running")


def _name(broker: int | None) -> str:
    return "" if broker is None else str(broker)
