"""The options that several commands share, each with its environment variable and default."""

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_ADMIN = "http://127.0.0.1:9644"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIERLOG_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="Brokers to ask first. "
        f"Default: the nodes of `tierlog cluster up` if it runs here, else {DEFAULT_BOOTSTRAP}.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting by its Kafka name; may be repeated."),
]


def parse_pairs(pairs: list[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` -> `{"a": "1", "b": "2"}`; raises CliError for a word without `=`."""
    from tierlog.cli.errors import usage

    parsed = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise usage(
                f"{option} {pair!r} is not of the form KEY=VALUE",
                hint=f"For example: {option} retention.ms=-1",
            )
        parsed[key.strip()] = value.strip()
    return parsed
