"""`tierlog demo`: the whole of tierlog on real data; `make demo` runs it."""

from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import finite


def demo(
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    keep: Annotated[
        Path | None, typer.Option(help="Keep the broker's data and the bucket in this new directory.")
    ] = None,
    fraction: Annotated[
        float,
        typer.Option(
            min=0.001, max=1.0, callback=finite, help="Share of the flights to send: less is faster."
        ),
    ] = 1.0,
) -> None:
    """Send a year of flights through a broker that dies half way, tier them, and read them back."""
    from tierlog.cli.demo.run import run
    from tierlog.cli.process import BrokerFailed

    try:
        run(picture, keep, fraction)
    except BrokerFailed as failure:
        raise CliError(str(failure), hint="`tierlog demo --keep DIR` keeps the data to look at.") from None
