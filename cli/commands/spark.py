"""`tierlog spark NAME`: the jobs of `tierlog.spark.jobs` with a progress bar, and an archive for executors.

Their arguments are in the tables of the jobs, from which the options are made. The jobs also run without this
command, by `python -m tierlog.spark.jobs.NAME` or spark-submit.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.options import Json
from tierlog.cli.output import print_json, print_outcome, progress_bar, size
from tierlog.spark.jobs.arguments import ARGUMENTS, EXPECTED, INVALID, MEANINGS, Argument, Job

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

app = typer.Typer(
    help="Jobs of Spark over the whole history in the bucket (exports, audits, rewrites, compaction), and an "
    "archive for its executors. They need the extra `spark`.",
    no_args_is_help=True,
)


class BarProgress:
    """Shows a job's rounds as a bar on stderr."""

    def __init__(self, bar: "RichProgress") -> None:
        self._bar = bar
        self._task: Any = None

    def begin(self, label: str, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(label, total=total)

    def reach(self, completed: int) -> None:
        self._bar.update(self._task, completed=completed)


def command_of(name: str, meaning: str, arguments: tuple[Argument, ...]) -> Callable[..., None]:
    """A command with one option for each argument of the job, whose module is imported when it runs."""

    def command(**values: Any) -> None:
        as_json = values.pop("json")
        try:
            job: Job = importlib.import_module(f"tierlog.spark.jobs.{name}").JOB
        except ImportError as failure:
            hint = "Install what Spark's jobs need: pip install 'tierlog[spark]'."
            raise CliError(f"{failure.name} is not installed", hint=hint) from None
        try:
            for argument in arguments:
                values[argument.field] = argument.check(values[argument.field])
            with progress_bar(name) as bar:
                document = job.run({**values, "json": as_json}, BarProgress(bar))
        except EXPECTED as failure:
            code = ExitCode.USAGE if isinstance(failure, INVALID) else ExitCode.FAILED
            raise CliError(str(failure), hint=f"See `tierlog spark {name} --help`.", code=code) from failure
        if as_json:
            print_json(document)
        else:
            typer.echo(job.show(document))
        if not document.get("is_ok", True):
            raise typer.Exit(int(ExitCode.FAILED))

    parameters = [_parameter(argument) for argument in arguments]
    parameters.append(
        inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    )
    command.__name__, command.__doc__ = name, meaning
    command.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(argument: Argument) -> inspect.Parameter:
    meaning = argument.meaning
    if argument.choices:
        meaning = f"{meaning.removesuffix('.')}: {', '.join(argument.choices)}."
    option = typer.Option(f"--{argument.name}", metavar=argument.form or None, help=meaning)
    kind: Any = list[str] if argument.repeats else argument.kind
    default = inspect.Parameter.empty if argument.required else argument.default
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        argument.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


for _name, _arguments in ARGUMENTS.items():
    app.command(_name)(command_of(_name, MEANINGS[_name], _arguments))


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
        raise CliError(str(error), hint="See `tierlog spark package --help`.") from None
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
