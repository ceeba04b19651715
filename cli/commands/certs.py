"""`tierlog certs …`: creates certificates for laptops and tests."""

import re
from pathlib import Path
from typing import Annotated

import typer

from tierlog.base.clock import SystemClock
from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import Json
from tierlog.cli.output import print_outcome

app = typer.Typer(no_args_is_help=True, help="Create certificates for laptops and tests.")

DAYS = 365
DAYS_MAX = 3_650
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
RESERVED = frozenset({"ca", "broker"})
NAME_HINT = "Use letters, digits, _, - and ., and neither ca nor broker."


@app.callback()
def certs() -> None:
    """Create certificates for laptops and tests."""


@app.command()
def create(
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where the files are written.")] = Path(
        "certs"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host name or address of the brokers. Repeat it for several."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", help="Name of a client that gets a certificate. Repeat it for several."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=DAYS_MAX, help="Days until the certificates expire.")
    ] = DAYS,
    as_json: Json = False,
) -> None:
    """Create broker.pem, which all brokers can use, and a file for each client, signed by the CA in ca.pem.

    The directory's CA is created if there is none, and is valid for as many days: no certificate is valid for
    longer than it. For production, use the CA of your organization: a
    process that can read ca.key can act as any client.
    """
    names = client or []
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name in RESERVED:
            raise usage(f"--client {name} cannot be the name of a file", hint=NAME_HINT)
    from tierlog.cli.certificates import CA_FILE, LocalAuthority

    try:
        authority = LocalAuthority(directory, SystemClock().now_ms() // 1000, days)
        broker = authority.issue("broker", tuple(host or ("localhost", "127.0.0.1", "::1")))
        clients = [authority.issue(name) for name in names]
    except (OSError, ValueError) as failure:
        raise CliError(f"{directory}: {failure}", hint="Choose another --directory.") from None
    until = f"{authority.valid_until:%Y-%m-%d}"
    created = {
        "valid_until": until,
        "ca": str(directory / CA_FILE),
        "broker": str(broker),
        "clients": [str(one) for one in clients],
    }
    listed = ", ".join(map(str, [directory / CA_FILE, broker, *clients]))
    where = f"For a broker: --set ssl.keystore.location={broker.absolute()}"
    message = f"Created {listed}, valid until {until}. {where}"
    print_outcome(message, created, as_json=as_json)
