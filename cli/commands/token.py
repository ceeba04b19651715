"""`tierlog token …`: creates, lists, renews and expires delegation tokens (KIP-48)."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import usage
from tierlog.cli.options import Bootstrap, ClientConfig, Json, Yes, confirm
from tierlog.cli.output import counted, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.tokens import Row

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, renew and expire delegation tokens, by which jobs log in for a while.",
)


def _token_id(given: Any) -> Any:
    if given == "" or (isinstance(given, list) and "" in given):
        raise usage("a token needs an id", hint="List tokens with `tierlog token list`.")
    return given


TokenId = Annotated[str, typer.Argument(callback=_token_id, help="The id of the token.")]
COLUMNS = {
    "token_id": "token",
    "owner": "owner",
    "requester": "requester",
    "renewers": "renewers",
    "expires": "expires",
    "renewable_until": "renewable until",
}


@app.command()
def create(
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="NAME",
            help="User of the token's logins; User:NAME or NAME. Default: yourself. Others need "
            "the operation CREATE_TOKENS on that user.",
        ),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="NAME", help="Another user who may renew it. May be repeated."),
    ] = None,
    max_lifetime: Annotated[
        str | None,
        typer.Option(
            "--max-lifetime",
            metavar="DURATION",
            help="How long it can be renewed: 90m, 36h, 7d. "
            "Default, and at most: delegation.token.max.lifetime.ms of the broker.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="New file for the client settings of a job that logs in by the token. The token's password "
            "is then not printed.",
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Create a token. Its HMAC, in base64, is the password of its logins: keep it secret.

    A job needs a file with its login, which --output writes: with the address and TLS of --client-config.
    """
    from tierlog.cli import tokens
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.client_config import client_properties
    from tierlog.cli.targets import bootstrap_target

    lifetime_ms = _milliseconds(max_lifetime, tokens.DEFAULT_MS)
    with ExitStack() as stack:  # the file first, or the token's password could be lost
        file = None if output is None else stack.enter_context(tokens.private_file(output))
        with KafkaClient(bootstrap, changes=True) as client:
            made = tokens.create(client, owner, renewer or (), lifetime_ms)
        if file is not None:
            target = bootstrap_target(bootstrap).addresses
            like = client_properties(target) | {"bootstrap.servers": target}
            file.write(tokens.client_settings(made, like))
    secret = {} if output is not None else {"hmac": made.hmac}
    if as_json:
        print_json(made.row | secret)
        return
    _print([made.row])
    if output is None:
        typer.echo(f"HMAC: {made.hmac}")
    else:
        print_outcome(f"client settings written to {output}", {}, as_json=False)


@app.command("list")
def list_(
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner", metavar="NAME", help="Only tokens that this user owns, created or may renew."
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List the tokens that you own, created or may renew, and others that you may describe."""
    from tierlog.cli import tokens
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = tokens.rows(client, owner or ())
    _print(found, as_json=as_json)


@app.command()
def describe(
    token: Annotated[
        list[str], typer.Argument(callback=_token_id, metavar="TOKEN...", help="Ids of tokens.")
    ],
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the owners of tokens and when they expire. Their HMACs are not shown."""
    from tierlog.cli import tokens
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = tokens.selected(client, list(dict.fromkeys(token)))
    _print(found, as_json=as_json)


@app.command()
def renew(
    token: TokenId,
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            metavar="DURATION",
            help="How long it is valid from now on: 90m, 12h. "
            "Default, and at most: delegation.token.expiry.time.ms of the broker.",
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Make a token valid for longer, up to its maximum."""
    from tierlog.cli import tokens
    from tierlog.cli.client import KafkaClient

    period_ms = _milliseconds(period, tokens.DEFAULT_MS)
    with KafkaClient(bootstrap, changes=True) as client:
        expires_ms = tokens.renew(client, token, period_ms)
    _print_expiry(token, expires_ms, as_json=as_json)


@app.command()
def expire(
    token: TokenId,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="DURATION", help="How long it stays valid: 10m, 1h. Default: it ends now."
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove a token, or change when it expires. Connections that logged in by it end with it."""
    from tierlog.cli import tokens
    from tierlog.cli.client import KafkaClient

    period_ms = _milliseconds(after, tokens.DEFAULT_MS)
    if not yes and after is None:
        confirm(f"Remove the token {token}, and close the connections that logged in by it?")
    with KafkaClient(bootstrap, changes=True) as client:
        expires_ms = tokens.expire(client, token, period_ms)
    if after is not None:
        _print_expiry(token, expires_ms, as_json=as_json)
        return
    print_outcome(f"token {token} removed", {"token_id": token, "removed": True}, as_json=as_json)


def _milliseconds(duration: str | None, default: int) -> int:
    """Raises CliError, also for 0: a broker would take it for its default."""
    from tierlog.cli.group_offsets import parse_duration

    if duration is None:
        return default
    found = parse_duration(duration)
    if found <= 0:
        raise usage(f"invalid duration {duration!r}: it must be positive", hint="For example: 90m, 36h, 7d")
    return found


def _print_expiry(token: str, expires_ms: int, *, as_json: bool) -> None:
    document = {"token_id": token, "expires_ms": expires_ms}
    print_outcome(f"token {token} expires at {_time(expires_ms)}", document, as_json=as_json)


def _print(found: "Sequence[Row]", *, as_json: bool = False) -> None:
    if as_json:
        print_json(list(found))
        return
    lines = [
        row | {"expires": _time(row["expires_ms"]), "renewable_until": _time(row["max_ms"])} for row in found
    ]
    print_rows(COLUMNS, lines, title=counted(len(lines), "token"))


def _time(timestamp_ms: int) -> str:
    """In UTC; the number itself if it is after the year 9999."""
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
