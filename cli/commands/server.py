"""`tierlog server`: runs a node for production, with settings from a file, the environment and `--set`."""

from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.options import Json, Settings


def server(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            envvar="TIERLOG_CONFIG",
            exists=True,
            dir_okay=False,
            help="TOML file with settings by their Kafka names.",
        ),
    ] = None,
    sets: Settings = None,
    as_json: Json = False,
) -> None:
    """Run a node. TIERLOG_… environment variables override the settings of the file, and --set overrides
    both."""
    from tierlog.cli.node import read_settings, serve
    from tierlog.cli.options import parse_pairs

    serve(read_settings(file=config, options=parse_pairs(sets, "--set")), as_json=as_json)
