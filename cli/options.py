"""Options that several commands share, each with its environment variable and default."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tierlog.cli.errors import CliError, no_topic_name, usage

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""Ranges of the protocol's integers. Options reject larger numbers before anything is sent."""

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_ADMIN = "http://127.0.0.1:9644"


def topic_name(given: Any) -> Any:
    """Argument callback that rejects an empty name. Raises CliError."""
    if given == "" or (isinstance(given, list) and "" in given):
        raise no_topic_name()
    return given


def group_id(given: Any) -> Any:
    """Argument callback that rejects an empty group id. Raises CliError."""
    if given == "" or (isinstance(given, list) and "" in given):
        raise usage("a group needs an id", hint="List the groups with `tierlog group list`.")
    return given


def _remember_client_config(given: Path | None) -> Path | None:
    """Callback of --client-config."""
    from tierlog.cli.client_config import remember

    return remember(given)


def admin_of_cluster(context: typer.Context, parameter: typer.CallbackParam, given: str | None) -> str | None:
    """Callback of --admin: TIERLOG_ADMIN may belong to another cluster than a --bootstrap of the command
    line, which then decides."""
    sources = [context.get_parameter_source(name) for name in (parameter.name or "", "bootstrap")]
    is_other = [source and source.name for source in sources] == ["ENVIRONMENT", "COMMANDLINE"]
    return None if is_other else given


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics, for the shell."""
    from tierlog.cli.completions import topics

    return topics(context, incomplete)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of groups, for the shell."""
    from tierlog.cli.completions import groups

    return groups(context, incomplete)


def complete_node_settings(incomplete: str) -> list[str]:
    """Names of settings of nodes, for the shell."""
    from tierlog.cli.completions import node_settings

    return node_settings(incomplete)


def complete_topic_settings(incomplete: str) -> list[str]:
    """Names of settings of topics, for the shell."""
    from tierlog.cli.completions import topic_settings

    return topic_settings(incomplete)


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIERLOG_BOOTSTRAP",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="Bootstrap brokers; one that responds is enough. "
        f"Default: the local cluster of `tierlog cluster up` if there is one, else {DEFAULT_BOOTSTRAP}.",
    ),
]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        envvar="TIERLOG_CLIENT_CONFIG",
        callback=_remember_client_config,
        metavar="FILE",
        help="Properties file with Kafka's client settings, for brokers with TLS or SASL.",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        "-a",
        envvar="TIERLOG_ADMIN",
        callback=admin_of_cluster,
        metavar="URL[,URL...]",
        help="Admin HTTP API of one or more nodes; the first that responds is used. "
        "Default: the cluster at --bootstrap if given, "
        f"the local cluster of `tierlog cluster up` if there is one, else {DEFAULT_ADMIN}.",
    ),
]
Topic = Annotated[str, typer.Argument(callback=topic_name, autocompletion=complete_topics, help="The topic.")]
Group = Annotated[str, typer.Argument(callback=group_id, autocompletion=complete_groups, help="The group.")]
OnlyTopic = Annotated[
    str | None, typer.Argument(callback=topic_name, autocompletion=complete_topics, help="Only this topic.")
]
Partition = Annotated[int, typer.Argument(min=0, max=INT32_MAX, help="The partition.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]
ValidateOnly = Annotated[
    bool, typer.Option("--validate-only", help="Validate the request, and change nothing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TIERLOG_CONFIG",
        exists=True,
        dir_okay=False,
        help="TOML file with settings by their Kafka names.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Set a node setting by its Kafka name. May be repeated."
    ),
]


def node_settings(sets: list[str] | None) -> dict[str, str]:
    """The settings of `--set` options."""
    return parse_pairs(sets, "--set", "--set log.retention.hours=24")


def parse_pairs(pairs: list[str] | None, option: str, example: str) -> dict[str, str]:
    """`["a=1", "b=2"]` -> `{"a": "1", "b": "2"}`. Raises CliError with the example for a pair without `=`."""
    parsed = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise usage(
                f"invalid {option} {pair!r}: expected KEY=VALUE",
                hint=f"For example: {example}",
            )
        parsed[key.strip()] = value.strip()
    return parsed


def finite(number: float) -> float:
    """Option callback that rejects `nan` and `inf`; `nan` would pass min and max."""
    if not math.isfinite(number):
        raise typer.BadParameter("expected a finite number")
    return number


def known_words(given: list[str] | None, known: tuple[str, ...], option: str) -> list[str]:
    """Values of a filter as the broker spells them; case does not matter. Raises CliError for other words,
    of which a broker knows nothing: its empty answer would look like a result."""
    spelled = {word.lower(): word for word in known}
    for word in given or []:
        if word.lower() not in spelled:
            raise usage(f"invalid {option} {word!r}", hint=f"Use one of {', '.join(known)}.")
    return [spelled[word.lower()] for word in given or []]


def confirm(question: str) -> None:
    """Ask on the terminal. Raises CliError unless the answer is yes."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as aborted:  # Ctrl-C, or the end of standard input
        typer.echo(err=True)
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        hint = "Answer y to continue, or skip the question with --yes."
        raise CliError("nothing was changed", hint=hint) from None
    if not agreed:
        raise CliError("nothing was changed")


def make_directory(directory: Path, option: str) -> None:
    """Create a directory that a node can write to. Raises CliError that names the option."""
    hint = f"Choose another directory with {option}."
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise CliError(f"{directory} is a file", hint=hint) from None
    except OSError as failure:
        raise CliError(f"cannot create {directory}: {failure.strerror}", hint=hint) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise CliError(f"{directory} is not writable", hint=hint)
