"""`tierlog storage …`: prepares the log directory of a node before its first start."""

from typing import Annotated

import typer

from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import ConfigFile, Json, Settings, node_settings
from tierlog.cli.output import print_outcome

app = typer.Typer(no_args_is_help=True, help="Prepare a node before its first start.")


@app.callback()
def _storage() -> None:
    """Without a callback typer would merge the only command into the group."""


@app.command("format")
def format_(
    config: ConfigFile = None,
    sets: Settings = None,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="SCRAM-SHA-512=[name=USER,password-file=FILE]",
            help="First user of the cluster; - reads the password from standard input. Also "
            "iterations=NUMBER, and as in Kafka password=TEXT, which others see in the list of processes, or "
            "salt= and saltedpassword= in base64. May be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Give a new cluster its first users, so that it never stands open.

    Run it on each broker with the same users before its first start: the cluster takes those of the broker
    that registers first. A node formats its directories itself.
    """
    from tierlog.base.files import OsFiles
    from tierlog.broker.security.first_users import is_used, write_first_users
    from tierlog.cli.node import read_settings
    from tierlog.cli.passwords import parse_add_scram
    from tierlog.metadata.controller.commands import CredentialChange

    if not add_scram:
        raise usage(
            "nothing to do: a node formats its directories at its first start",
            hint="Give the first user: --add-scram 'SCRAM-SHA-512=[name=admin,password-file=FILE]'",
        )
    directory = read_settings(file=config, options=node_settings(sets)).data_directory
    changes = [
        CredentialChange(user=user, mechanism=mechanism, verifier=verifier)
        for user, mechanism, verifier in map(parse_add_scram, add_scram)
    ]
    if len({(change.user, change.mechanism) for change in changes}) < len(changes):
        raise usage("--add-scram names a user twice", hint="Give each user and mechanism once.")
    files = OsFiles()
    if is_used(files, directory):
        hint = "Create users of a running cluster with `tierlog user create`."
        raise CliError(f"{directory} is in use by a node, or was", hint=hint)
    try:
        file = write_first_users(files, directory, tuple(changes))
    except OSError as failure:
        raise CliError(
            f"cannot write to {directory}: {failure.strerror}", hint="Choose another directory with log.dirs."
        ) from None
    names = sorted({change.user for change in changes})
    print_outcome(
        f"first users {', '.join(names)} written to {file}",
        {"users": names, "file": str(file)},
        as_json=as_json,
    )
