"""`tierlog spark …`: tools for Spark jobs that read the history in the bucket."""

from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import Json
from tierlog.cli.output import print_outcome, size

app = typer.Typer(no_args_is_help=True, help="Prepare Spark clusters.")


@app.callback()
def _group() -> None:
    """Makes Typer keep the name of a single command."""


@app.command()
def package(
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The archive to write.")
    ] = Path("tierlog-executor.tar.gz"),
    without_dependencies: Annotated[
        bool,
        typer.Option("--without-dependencies", help="Only tierlog: the executors have numpy, pyarrow, …"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an archive with all that executors need, for spark-submit --archives."""
    from tierlog.spark.package import PackageError, write_package

    try:
        made = write_package(output, with_dependencies=not without_dependencies)
    except PackageError as error:
        raise CliError(str(error)) from None
    print_outcome(
        f"Wrote {made.path} ({size(made.size_bytes)}) for Python {made.python} on {made.platform}.\n"
        f"spark-submit --archives {made.path}#tierlog-executor "
        "--conf spark.executorEnv.PYTHONPATH=./tierlog-executor …",
        {
            "path": str(made.path),
            "size_bytes": made.size_bytes,
            "python": made.python,
            "platform": made.platform,
            "distributions": made.distributions,
        },
        as_json=as_json,
    )
