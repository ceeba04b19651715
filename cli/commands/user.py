"""`tierlog user …`: creates, lists, changes and deletes users that log in with SCRAM."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import Bootstrap, ClientConfig, Json, Yes, confirm, known_words
from tierlog.cli.output import counted, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S
from tierlog.protocol.sasl.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS

if TYPE_CHECKING:
    from tierlog.cli.users import Row

app = typer.Typer(
    no_args_is_help=True, help="Create, list, change and delete users that log in with a password (SCRAM)."
)
NAMES = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def _name(given: Any) -> Any:
    if given == "" or (isinstance(given, list) and "" in given):
        raise usage("a user needs a name", hint="List users with `tierlog user list`.")
    return given


User = Annotated[str, typer.Argument(callback=_name, help="The user.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File whose first line is the password; - for standard input. Default: ask on the terminal.",
    ),
]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", metavar="NAME", help=f"{' or '.join(NAMES)}. May be repeated. Default: both."
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        min=MIN_ITERATIONS,
        max=MAX_ITERATIONS,
        help="Iterations of the hash: more make guessing, and each login, slower.",
    ),
]


@app.command()
def create(
    user: User,
    password_file: PasswordFile = None,
    mechanism: Mechanism = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Create a user that logs in with a password."""
    from tierlog.cli import users
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.passwords import read_password

    mechanisms = _mechanisms(mechanism)
    password = read_password(password_file, user=user)
    with KafkaClient(bootstrap, changes=True) as client:
        if users.exists(client, user):
            hint = f"Change the password with `tierlog user alter {user}`."
            raise CliError(f"the user {user} exists", hint=hint)
        users.set_password(client, user, password, mechanisms, iterations)
    print_outcome(
        f"user {user} created", {"user": user, "mechanisms": mechanisms, "created": True}, as_json=as_json
    )


@app.command("list")
def list_(as_json: Json = False, bootstrap: Bootstrap = None, client_config: ClientConfig = None) -> None:
    """List all users and how they can log in."""
    from tierlog.cli import users
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = users.rows(client)
    _print(found, as_json)


@app.command()
def describe(
    user: Annotated[list[str], typer.Argument(callback=_name, metavar="USER...", help="The users.")],
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show how users can log in. Passwords cannot be shown."""
    from tierlog.cli import users
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = users.rows(client, list(dict.fromkeys(user)))
    _print(found, as_json)


@app.command()
def alter(
    user: User,
    password_file: PasswordFile = None,
    mechanism: Mechanism = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Give a user a new password. Connections that exist continue until they log in again."""
    from tierlog.cli import users
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.passwords import read_password

    mechanisms = _mechanisms(mechanism)
    password = read_password(password_file, user=user)
    with KafkaClient(bootstrap, changes=True) as client:
        if not users.exists(client, user):
            raise users.unknown_user(user)
        users.set_password(client, user, password, mechanisms, iterations)
    print_outcome(
        f"password of {user} changed",
        {"user": user, "mechanisms": mechanisms, "changed": True},
        as_json=as_json,
    )


@app.command()
def delete(
    user: User,
    mechanism: Mechanism = None,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete a user, or only its credentials of some mechanisms."""
    from tierlog.cli import users
    from tierlog.cli.client import KafkaClient

    wanted = _mechanisms(mechanism)
    with KafkaClient(bootstrap, changes=True) as client:
        (row,) = users.rows(client, [user])
        present = [one["mechanism"] for one in row["mechanisms"]]
        removed = [name for name in present if name in wanted]
        if not removed:
            raise CliError(
                f"{user} has no credential of {', '.join(wanted)}",
                hint=f"See `tierlog user describe {user}`.",
            )
        if not yes:
            confirm(f"Delete {user}, which then cannot log in with {' or '.join(removed)}?")
        users.delete(client, user, removed)
    is_gone = len(removed) == len(present)
    print_outcome(
        f"user {user} deleted" if is_gone else f"{', '.join(removed)} of {user} deleted",
        {"user": user, "mechanisms": removed, "deleted": True},
        as_json=as_json,
    )


def _mechanisms(given: list[str] | None) -> list[str]:
    return known_words(given, NAMES, "--mechanism") or list(NAMES)


def _print(found: "list[Row]", as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    lines = [
        {
            "user": row["user"],
            "mechanisms": ", ".join(
                f"{one['mechanism']} ({one['iterations']} iterations)" for one in row["mechanisms"]
            ),
        }
        for row in found
    ]
    print_rows({"user": "user", "mechanisms": "mechanisms"}, lines, title=counted(len(lines), "user"))
