"""`tierlog cluster config …`: dynamic settings of the cluster as values and files; checks of settings files.

`tierlog broker settings` and `broker alter` show and change the settings of one broker, and share their
requests.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands.broker_settings import SOURCES, START_UP_HINT, alter, described
from tierlog.cli.errors import CliError, ExitCode, unknown_broker, usage
from tierlog.cli.options import (
    INT32_MAX,
    Bootstrap,
    ClientConfig,
    DryRun,
    Json,
    Yes,
    complete_node_settings,
    confirm,
    known_words,
)
from tierlog.cli.output import counted, print_json, print_outcome, print_rows, print_status
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.dynamic_settings import Change, Document, Scope
    from tierlog.cli.settings_lint import LintFinding

app = typer.Typer(
    no_args_is_help=True, help="Read, change and compare the settings of brokers; check settings files."
)

CHANGE_COLUMNS = {"scope": "of", "name": "setting", "before": "in the cluster", "after": "in the file"}
LINT_COLUMNS = {"level": "level", "line": "line", "name": "setting", "what": "finding", "next": "what to do"}
Broker = Annotated[
    int | None,
    typer.Option("--broker", min=0, max=INT32_MAX, metavar="ID", help="One broker. Default: all."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", "-F", metavar="yaml|properties", help="Form of the file. Default: by its name, else yaml."
    ),
]
File = Annotated[Path, typer.Argument(dir_okay=False, help="File of `export`; - is standard input.")]


@app.command()
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete_node_settings,
            help="Names of settings. Default: all that are not at their default.",
        ),
    ] = None,
    broker: Broker = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the values that settings have on the running brokers, and where each value comes from.

    A setting with different values has a line for each.
    """
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        brokers = _running(client) if broker is None else [broker]
        rows = [{**row, "broker": one} for one in brokers for row in described(client, one)]
    known = {row["name"] for row in rows}
    for name in names or ():
        if name not in known:
            raise _no_setting(name, known)
    default = SOURCES[5]
    wanted = [row for row in rows if (row["name"] in names if names else row["source"] != default)]
    found = _by_value(wanted, brokers)
    columns = {"name": "setting", "value": "value", "source": "from", "brokers": "brokers", "runs": "dynamic"}
    print_rows(columns, found, title=counted(len(found), "value"), as_json=as_json)


@app.command("set")
def set_(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            autocompletion=complete_node_settings,
            help="Settings; KEY= sets an empty value.",
        ),
    ],
    broker: Broker = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="For scripts that give it to `import` too: `set` never asks.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Change dynamic settings of all brokers, or of one: the same as `tierlog broker alter`.

    `tierlog broker alter --unset` returns to the value from start-up.
    """
    alter(broker, settings, None, as_json, bootstrap, client_config)


@app.command()
def export(
    output: Annotated[
        Path | None,
        typer.Option("--output", dir_okay=False, help="Write this file. Default: standard output."),
    ] = None,
    kind: Format = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Write the dynamic settings of all brokers, and those of single brokers, for `diff` and `import`.

    Settings from the files of nodes are not in it. Values that brokers hide are left out, and named.
    """
    import sys

    from tierlog.cli.client import KafkaClient
    from tierlog.cli.dynamic_settings import text_of

    by_name = "properties" if output is not None and output.suffix == ".properties" else "yaml"
    form = _form(kind) or by_name
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        document, hidden = _current(client, _running(client))
        stopped = sorted(set(_registered(client)) - document.keys())
    for text in hidden:
        print_status(f"not in it: {text}, whose value the broker does not show")
    if stopped:
        names = ", ".join(map(str, stopped))
        print_status(f"not in it: the own settings of brokers that do not run: {names}")
    if as_json:
        print_json({"cluster": document[None], "brokers": _singles(document), "hidden": hidden})
        return
    text = text_of(document, form)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as failure:
        hint = "Choose another file with --output."
        raise CliError(f"cannot write {output}: {failure.strerror}", hint=hint) from None
    print_status(f"{output}: {counted(sum(map(len, document.values())), 'setting')}")


@app.command()
def diff(
    file: Annotated[
        Path | None, typer.Argument(dir_okay=False, help="File of `export`; - is standard input.")
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="ID,ID", help="Compare the values of two brokers instead."),
    ] = None,
    kind: Format = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Compare a file of `export` with the cluster, or two brokers with each other.

    Exit code 1 if they differ. Settings of the cluster that the file does not name count too.
    """
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.dynamic_settings import changes_to, read_document, row

    if (file is None) == (brokers is None):
        raise usage("nothing to compare", hint="Give one of the two: a file, or --brokers ID,ID.")
    pair = [] if brokers is None else _pair(brokers)
    form = _form(kind)
    wanted = None if file is None else read_document(file, form)
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        if pair:
            client.metadata([])
            client.require(pair)
            rows = _differing(*(described(client, one) for one in pair))
            columns = {"name": "setting", "one": f"broker {pair[0]}", "other": f"broker {pair[1]}"}
        else:
            current, _ = _current(client, _running(client))
            rows = [row(change) for change in changes_to(wanted or {}, current, complete=True)]
            columns = CHANGE_COLUMNS
    if rows or as_json:
        print_rows(columns, rows, title=counted(len(rows), "difference"), as_json=as_json)
    else:
        print_status("no difference")
    if rows:
        raise typer.Exit(int(ExitCode.FAILED))


@app.command("import")
def import_(
    file: File,
    remove_others: Annotated[
        bool,
        typer.Option("--remove-others", help="Also remove dynamic settings that the file does not name."),
    ] = False,
    kind: Format = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show what a file of `export` changes, and apply it once confirmed.

    The whole file is checked before the first change. All changes of one broker, or of all, apply, or none.
    """
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.dynamic_settings import changes_to, check, read_document, row, scope_name
    from tierlog.cli.targets import announce_target, bootstrap_target

    form = _form(kind)
    wanted = read_document(file, form)
    with KafkaClient(bootstrap) as client:
        running = _running(client)
        for scope in wanted:
            if scope is not None and scope not in running:
                raise unknown_broker(scope, "is not registered, or not running")
        current, _ = _current(client, running)
        changes = changes_to(wanted, current, complete=remove_others)
        check(changes)
        rows = [row(change) for change in changes]
        document = {"changes": rows, "applied": bool(changes) and not dry_run}
        if changes and not as_json:
            print_rows(CHANGE_COLUMNS, rows, title=counted(len(changes), "change"))
        if changes and not dry_run:
            if not yes:
                where = bootstrap_target(bootstrap)
                confirm(f"Apply {counted(len(changes), 'change')} to {where}?")
            else:
                announce_target(bootstrap_target(bootstrap))
            for scope in dict.fromkeys(change.scope for change in changes):
                _apply(client, scope, [change for change in changes if change.scope == scope])
                print_status(f"settings of {scope_name(scope)} changed")
    if not changes or as_json:
        print_outcome("nothing to change", document, as_json=as_json)


@app.command()
def lint(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="A node's settings: TOML, or .properties as Kafka's brokers have.",
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as findings too.")] = False,
    as_json: Json = False,
) -> None:
    """Check a node's settings file without a cluster: unknown, old, contradictory and dangerous settings.

    Exit code 1 if a node would not start with the file, or records may be lost. `tierlog security check
    --config` checks its security.
    """
    from tierlog.cli.settings_lint import Level, lint_file

    findings = lint_file(file)
    _print_lint(file, findings, as_json=as_json)
    if findings and (strict or any(one.level is not Level.WARNING for one in findings)):
        raise typer.Exit(int(ExitCode.FAILED))


def _print_lint(file: Path, findings: "Sequence[LintFinding]", *, as_json: bool) -> None:
    rows = [finding.row() for finding in findings]
    if as_json:
        print_json({"file": str(file), "findings": rows})
    elif rows:
        print_rows(LINT_COLUMNS, rows, title=f"{file}: {counted(len(rows), 'finding')}")
    else:
        print_status(f"{file}: no findings")


def _pair(brokers: str) -> list[int]:
    ids = [one.strip() for one in brokers.split(",")]
    if len(ids) != 2 or not all(one.isascii() and one.isdecimal() and int(one) <= INT32_MAX for one in ids):
        raise usage(f"invalid --brokers {brokers!r}", hint="Give the ids of two brokers: --brokers 1,2")
    return [int(one) for one in ids]


def _form(kind: str | None) -> str | None:
    from tierlog.cli.dynamic_settings import FORMATS

    return known_words([kind], FORMATS, "--format")[0] if kind else None


def _running(client: "KafkaClient") -> list[int]:
    """Ids of the brokers that run. Raises CliError that names those that do not respond."""
    running = sorted(one.node_id for one in client.metadata([]).brokers)
    client.require(running)
    return running


def _registered(client: "KafkaClient") -> list[int]:
    """Ids of brokers, also of those that do not run (KIP-1073)."""
    from tierlog.cli.client import raise_for
    from tierlog.protocol.messages.describe_cluster import DescribeClusterRequest

    response = client.call(DescribeClusterRequest(include_fenced_brokers=True))
    raise_for(response.error_code, response.error_message, "brokers of the cluster")
    return [one.broker_id for one in response.brokers]


def _current(client: "KafkaClient", running: Sequence[int]) -> "tuple[Document, list[str]]":
    """The dynamic settings, and names of those whose values brokers hide."""
    from tierlog.cli.dynamic_settings import scope_name

    document: Document = {}
    hidden = []
    scopes: list[Scope] = [None, *running]
    for scope in scopes:
        own = [row for row in described(client, scope) if row["source"] == SOURCES[3 if scope is None else 2]]
        document[scope] = {row["name"]: row["value"] for row in own if row["value"] is not None}
        hidden += [f"{row['name']} of {scope_name(scope)}" for row in own if row["value"] is None]
    return document, hidden


def _apply(client: "KafkaClient", scope: "Scope", changes: "Sequence[Change]") -> None:
    from tierlog.cli import configs
    from tierlog.cli.dynamic_settings import scope_name

    configs.alter(
        client,
        configs.BROKER_RESOURCE,
        "" if scope is None else str(scope),
        f"settings of {scope_name(scope)} not changed",
        sets={change.name: change.after for change in changes if change.after is not None},
        unsets=[change.name for change in changes if change.after is None],
        broker=scope,
        hint=START_UP_HINT,
    )


def _by_value(rows: list[dict[str, Any]], brokers: Sequence[int]) -> list[dict[str, Any]]:
    """One row for the brokers that have the same value from the same source."""
    found: dict[tuple[str, Any, str], dict[str, Any]] = {}
    for row in rows:
        same = found.setdefault((row["name"], row["value"], row["source"]), {**row, "brokers": []})
        same["brokers"].append(row["broker"])
    for row in found.values():
        del row["broker"]
    return sorted(found.values(), key=lambda row: (row["name"], row["brokers"]))


def _differing(*sides: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of settings that two brokers have different values of. Each broker has its own `node.id`."""
    one, other = ({row["name"]: row["value"] for row in side} for side in sides)
    return [
        {"name": name, "one": one.get(name), "other": other.get(name)}
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _singles(document: "Document") -> dict[int, dict[str, str]]:
    return {scope: settings for scope, settings in document.items() if scope is not None and settings}


def _no_setting(name: str, known: set[str]) -> CliError:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    what = f"brokers have no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else "")
    return CliError(
        what, hint="List all settings with `tierlog broker settings BROKER --all`.", code=ExitCode.NOT_FOUND
    )
