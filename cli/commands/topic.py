"""`tierlog topic …`: creates, lists, describes, changes and deletes topics."""

from typing import Annotated

import typer

from tierlog.cli.commands import topic_analyze, topic_trim
from tierlog.cli.errors import usage
from tierlog.cli.options import (
    INT16_MAX,
    INT32_MAX,
    Bootstrap,
    ClientConfig,
    Json,
    ValidateOnly,
    Yes,
    complete_topic_settings,
    complete_topics,
    confirm,
    parse_pairs,
    topic_name,
)
from tierlog.cli.output import counted, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, change and delete topics.")
Name = Annotated[
    str, typer.Argument(callback=topic_name, autocompletion=complete_topics, help="Name of the topic.")
]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        autocompletion=complete_topic_settings,
        help="Set a topic setting by its Kafka name. May be repeated.",
    ),
]

CONFIG_EXAMPLE = "--config retention.ms=-1"
PARTITION_COLUMNS = {
    "partition": "partition",
    "leader": "leader",
    "replicas": "replicas",
    "in_sync": "in sync",
    "log_start_offset": "log start",
    "remote_end_offset": "remote end",
    "local_log_start_offset": "local start",
    "log_end_offset": "log end",
}


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            min=-1,
            max=INT32_MAX,
            help="Number of partitions. -1: the broker's default.",
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            min=-1,
            max=INT16_MAX,
            help="Replicas of each partition. -1: the broker's default.",
        ),
    ] = -1,
    config: Configs = None,
    validate_only: ValidateOnly = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Create a topic, and wait until all partitions have a leader."""
    from tierlog.cli import topics
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, changes=not validate_only) as client:
        topics.create(
            client,
            name,
            partitions,
            replication_factor,
            parse_pairs(config, "--config", CONFIG_EXAMPLE),
            validate_only=validate_only,
        )
        partition_count = None if validate_only else len(client.topic(name).partitions)
    print_outcome(
        f"topic {name} is valid (nothing changed)" if validate_only else f"topic {name} created",
        {"topic": name, "created": not validate_only, "partitions": partition_count},
        as_json=as_json,
    )


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List topics with their number of partitions, replicas and offsets."""
    from tierlog.cli import topics
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = topics.rows(client, internal=internal)
    columns = {
        "topic": "topic",
        "partitions": "partitions",
        "replicas": "replicas",
        "offsets": "offsets",
        "id": "id",
    }
    print_rows(columns, found, title=counted(len(found), "topic"), as_json=as_json)


@app.command()
def describe(
    name: Name,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include settings that have their default.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    from tierlog.cli import topics
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        topic_id = str(client.topic(name).topic_id)
        partitions = topics.partition_rows(client, name)
        configs = topics.config_rows(client, name, everything=all_configs)
    if as_json:
        print_json({"topic": name, "id": topic_id, "partitions": partitions, "configs": configs})
        return
    print_rows(PARTITION_COLUMNS, partitions, title=f"{name}  {topic_id}")
    if configs:
        print_rows(
            {"name": "setting", "value": "value", "set_on_topic": "set on the topic"},
            configs,
            title="Settings",
        )


@app.command()
def alter(
    name: Name,
    config: Configs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Reset a setting to its default. May be repeated."),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Change settings of a topic."""
    from tierlog.cli import configs
    from tierlog.cli.client import KafkaClient
    from tierlog.config.topic import TOPIC_SETTINGS

    if not config and not unset:
        raise usage("nothing to change", hint="Give --config KEY=VALUE or --unset KEY.")
    unsets = unset or []
    configs.check_known(unsets, TOPIC_SETTINGS, "docs/reference/settings.md lists all topic settings.")
    with KafkaClient(bootstrap, changes=True) as client:
        client.topic(name)
        sets = parse_pairs(config, "--config", CONFIG_EXAMPLE)
        what = f"topic {name}"
        configs.alter(client, configs.TOPIC_RESOURCE, name, what, sets=sets, unsets=unsets)
    changed = {"topic": name, "set": sets, "unset": unsets}
    print_outcome(f"settings of topic {name} changed", changed, as_json=as_json)


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(callback=topic_name, autocompletion=complete_topics, help="Names of the topics."),
    ],
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete topics with all their data, local and remote."""
    from tierlog.cli import topics
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.targets import bootstrap_target

    if not yes:
        what = f"topic {names[0]} with all its" if len(names) == 1 else f"topics {', '.join(names)} with all"
        confirm(f"Delete {what} records in {bootstrap_target(bootstrap)}?")
    with KafkaClient(bootstrap, changes=yes) as client:
        for name in names:
            client.topic(name)
            topics.delete(client, name)
            print_outcome(f"topic {name} deleted", {"topic": name, "deleted": True}, as_json=as_json)


@app.command("add-partitions")
def add_partitions(
    name: Name,
    total: Annotated[int, typer.Argument(min=1, max=INT32_MAX, help="New total number of partitions.")],
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Add partitions to a topic. Keys may map to other partitions afterwards."""
    from tierlog.cli import topics
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, changes=True) as client:
        client.topic(name)
        topics.add_partitions(client, name, total)
    document = {"topic": name, "partitions": total}
    print_outcome(f"topic {name} now has {counted(total, 'partition')}", document, as_json=as_json)


app.command()(topic_trim.trim)
app.command()(topic_analyze.analyze)
