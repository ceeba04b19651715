"""`tierlog broker settings|alter`: settings that change while brokers run, of one or of all (KIP-226)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.options import INT32_MAX, Bootstrap, Json, parse_pairs

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient

SOURCES = {2: "this broker", 3: "all brokers", 4: "its start", 5: "default"}
"""Where a value comes from, by Kafka's numbers."""

OneOrAll = Annotated[
    int | None,
    typer.Argument(
        metavar="[BROKER]", min=0, max=INT32_MAX, help="Id of the broker; without it: all brokers."
    ),
]


def settings(
    broker: OneOrAll = None,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Also those of the broker that have their default.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Show what is set for all brokers while they run; of one broker, whatever is not its default."""
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.output import print_rows

    with KafkaClient(bootstrap) as client:
        rows = [row for row in _rows(client, broker) if all_settings or row["source"] != SOURCES[5]]
    columns = {"name": "setting", "value": "value", "source": "set for", "runs": "changes while it runs"}
    title = "Settings of all brokers" if broker is None else f"Settings of broker {broker}"
    print_rows(columns, rows, title=title, as_json=as_json)


def alter(
    broker: OneOrAll = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Have what it was started with count again."),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Change settings while brokers run: of all, or of one, whose value wins. They outlive restarts."""
    from tierlog.cli import configs
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.errors import usage
    from tierlog.cli.output import print_done

    if not config and not unset:
        raise usage("nothing to change", hint="Give --config KEY=VALUE or --unset KEY.")
    sets = parse_pairs(config, "--config")
    _check_known(sets)
    with KafkaClient(bootstrap, changes=True) as client:
        _require(client, broker)
        own = {row["name"] for row in _rows(client, broker)} if unset else set()
        _check_known(name for name in unset or () if name not in own)
        configs.alter(
            client,
            configs.BROKER_RESOURCE,
            _name(broker),
            "not altered",
            sets=sets,
            unsets=unset or (),
            broker=broker,
        )
    who = "all brokers" if broker is None else f"broker {broker}"
    print_done(f"altered {who}", {"broker": broker, "set": sets, "unset": unset or []}, as_json=as_json)


def _rows(client: "KafkaClient", broker: int | None) -> list[dict[str, Any]]:
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
    """Brokers keep any name, as Kafka's do; from an operator an unknown one is a slip."""
    from tierlog.cli.errors import usage
    from tierlog.config.definitions import InvalidSetting, find_setting
    from tierlog.config.kafka_names import INERT_SETTINGS
    from tierlog.config.node import NODE_SETTINGS
    from tierlog.config.sources import ALIASES

    for name in names:
        try:
            if name not in ALIASES:
                find_setting({**NODE_SETTINGS, **INERT_SETTINGS}, name)
        except InvalidSetting as unknown:
            raise usage(
                str(unknown), hint="`tierlog broker settings BROKER --all` shows all names."
            ) from None


def _require(client: "KafkaClient", broker: int | None) -> None:
    """Only it knows what it was started with."""
    from tierlog.cli.errors import CliError, ExitCode

    if broker is not None and broker not in {one.node_id for one in client.metadata([]).brokers}:
        raise CliError(
            f"there is no broker {broker} that serves",
            hint="`tierlog broker list` shows those that are registered.",
            code=ExitCode.NOT_FOUND,
        )


def _name(broker: int | None) -> str:
    return "" if broker is None else str(broker)
