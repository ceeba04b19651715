"""`tierlog txn …`: lists and describes transactions, and finds and aborts those that hang."""

from typing import Annotated

import typer

from tierlog.cli.options import Bootstrap, ClientConfig, Json, Partition, Topic, Yes, confirm, known_words
from tierlog.cli.output import alternatives, counted, duration, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

app = typer.Typer(no_args_is_help=True, help="Show transactions, and abort those that hang.")
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
HANGING_MIN = 15.0
"""As transaction.max.timeout.ms: no transaction of a live coordinator is open for longer."""

MINUTE_MS = 60_000


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"Only in this state: {alternatives(STATES)}."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", help="Only of this producer id.")
    ] = None,
    open_longer_than_s: Annotated[
        float | None,
        typer.Option("--open-longer-than", metavar="SECONDS", min=0, help="Only open transactions this old."),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="RE2", help="Only ids that match this as a whole.")
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List transactional ids with their producer id and state."""
    from tierlog.cli import transactions
    from tierlog.cli.client import KafkaClient

    states = known_words(state, STATES, "--state")
    longer_than_ms = transactions.NONE if open_longer_than_s is None else int(open_longer_than_s * 1000)
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = transactions.rows(
            client,
            states=states,
            producer_ids=producer_id or (),
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )
    columns = {
        "transactional_id": "transactional id",
        "coordinator": "coordinator",
        "producer_id": "producer id",
        "state": "state",
    }
    print_rows(columns, found, title=counted(len(found), "transactional id"), as_json=as_json)


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction."""
    from tierlog.cli import transactions
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = transactions.describe(client, transactional_id)
    if as_json:
        print_json(found)
        return
    shown = {
        **found,
        "timeout": duration(found["timeout_ms"]),
        "open_for": "" if found["open_ms"] is None else duration(found["open_ms"]),
        "partitions": ", ".join(found["partitions"]),
    }
    columns = {
        "coordinator": "coordinator",
        "producer_id": "producer id",
        "producer_epoch": "epoch",
        "state": "state",
        "timeout": "timeout",
        "open_for": "open for",
        "partitions": "partitions",
    }
    print_rows(columns, [shown], title=transactional_id)


@app.command()
def find_hanging(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this topic. May be repeated.")
    ] = None,
    minutes: Annotated[
        float, typer.Option("--older-than", metavar="MINUTES", min=0, help="Minimum age.")
    ] = HANGING_MIN,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List transactions that partitions hold open, and that no coordinator will end.

    They hold back all consumers of committed records. End them with `tierlog txn abort`.
    """
    from tierlog.cli import transactions
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = transactions.hanging(client, topic, int(minutes * MINUTE_MS))
    columns = {
        "topic": "topic",
        "partition": "partition",
        "start_offset": "start offset",
        "producer_id": "producer id",
        "producer_epoch": "epoch",
    }
    print_rows(columns, found, title=counted(len(found), "hanging transaction"), as_json=as_json)


@app.command()
def abort(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[int, typer.Argument(min=0, help="Offset of the transaction's first record.")],
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Abort a hanging transaction in one partition, which then holds back no reader."""
    from tierlog.cli import transactions
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, changes=True) as client:
        if not yes:
            confirm(f"Abort the transaction in {topic}-{partition} that starts at offset {start_offset}?")
        found = transactions.abort(client, topic, partition, start_offset)
    message = f"transaction in {topic}-{partition} from offset {start_offset} aborted"
    print_outcome(message, found, as_json=as_json)
