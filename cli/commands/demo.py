"""`tierlog demo`: shows tierlog on real data; `make demo` runs it."""

from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import finite


def demo(
    picture: Annotated[Path, typer.Option(help="File for the picture.")] = Path("demo.png"),
    keep: Annotated[
        Path | None, typer.Option(help="Keep the broker's data and the bucket in this new directory.")
    ] = None,
    fraction: Annotated[
        float,
        typer.Option(
            min=0.001, max=1.0, callback=finite, help="Fraction of the flights to send; less is faster."
        ),
    ] = 1.0,
) -> None:
    """Send a year of flights through a broker that is killed half way, tier them, and read them back."""
    from tierlog.cli.demo.run import run
    from tierlog.cli.process import BrokerFailed

    try:
        run(picture, keep, fraction)
    except BrokerFailed as failure:
        hint = "Keep the data for inspection with `tierlog demo --keep DIR`."
        raise CliError(str(failure), hint=hint) from None
