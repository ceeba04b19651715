"""`tierlog cluster self-test`: measures what the cluster runs on."""

from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError, ExitCode, unreachable, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, finite, known_words
from tierlog.cli.output import counted, print_json, print_rows, print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierlog.cli.self_test import Line

COLUMNS = {
    "node": "node",
    "where": "where",
    "what": "measured",
    "shown": "result",
    "needed_text": "needed",
    "verdict": "verdict",
    "problem": "problem",
}
SECONDS_MAX = 30


def self_test(
    tests: Annotated[
        list[str] | None,
        typer.Option("--test", "-t", metavar="disk|store|network", help="Only this. May be repeated."),
    ] = None,
    node: Annotated[
        list[int] | None, typer.Option("--node", "-n", min=0, help="Only this node. May be repeated.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0.1,
            max=SECONDS_MAX,
            callback=finite,
            help="Time for each directory, for the store and for each address.",
        ),
    ] = 5.0,
    mebibytes: Annotated[
        int, typer.Option("--disk-mib", min=1, max=256, help="MiB to write to each directory.")
    ] = 64,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Measure the disks, the object store and the network of all nodes, and compare them with what is needed.

    Each node measures its disks and the store, all at once, with temporary files and objects that it
    removes. The network is measured from this machine. It needs the role operator. Exit codes: 5 if
    something is slow; 6 if something is too slow, or was not measured; 3 if no node responds.
    """
    from tierlog.cli.self_test import TESTS, Verdict

    wanted = known_words(tests, TESTS, "--test") or list(TESTS)
    lines = _measure(admin, bootstrap, wanted, node or [], seconds, mebibytes << 20)
    _print(lines, as_json=as_json)
    found = {line.verdict for line in lines}
    if found & {Verdict.BAD, Verdict.UNKNOWN}:
        raise typer.Exit(int(ExitCode.UNAVAILABLE))
    if Verdict.SLOW in found:
        raise typer.Exit(int(ExitCode.DEGRADED))


def _measure(
    admin: str | None,
    bootstrap: str | None,
    tests: list[str],
    only: list[int],
    seconds: float,
    disk_bytes: int,
) -> "list[Line]":
    from tierlog.broker.diagnosis.evidence import BROKERS, DIRECTORIES
    from tierlog.cli.admin import admin_target, split_urls
    from tierlog.cli.client_config import socket_opener
    from tierlog.cli.observation import ask
    from tierlog.cli.self_test import NETWORK, Line, Verdict, measure_network, measure_nodes
    from tierlog.cli.targets import announce_target, bootstrap_target

    target = admin_target(admin, bootstrap)
    urls = split_urls(target)
    answers = ask(urls, [DIRECTORIES])
    if not answers.documents:
        raise unreachable(", ".join(urls), "no node responds")
    announce_target(target)
    for missing in sorted(set(only) - answers.urls.keys()):
        raise CliError(
            f"no node {missing} is known",
            hint="List the nodes with `tierlog quorum status` and `tierlog broker list`.",
            code=ExitCode.NOT_FOUND,
        )
    nodes = {one: url for one, url in answers.urls.items() if not only or one in only}
    directories = {one: len(found["directories"]) + 1 for one, found in answers.of(DIRECTORIES).items()}
    lines = list(measure_nodes(nodes, answers.documents, tests, seconds, disk_bytes, directories))
    if NETWORK not in tests:
        return lines
    rows = {row["id"]: row for found in answers.of(BROKERS).values() for row in found["brokers"]}
    if not rows and not lines:
        raise usage("no node knows the brokers", hint="Run `tierlog cluster health` to see what is wrong.")
    if not rows:
        problem = "no node knows the brokers"
        return [
            *lines,
            Line(node=None, where="brokers", what=NETWORK, verdict=Verdict.UNKNOWN, problem=problem),
        ]
    brokers = [
        (one, row["host"], row["port"]) for one, row in sorted(rows.items()) if not only or one in only
    ]
    listed = ",".join(f"{host}:{port}" for _, host, port in brokers)
    opened = socket_opener(listed if admin and not bootstrap else bootstrap_target(bootstrap).addresses)
    return [*lines, *measure_network(brokers, opened, seconds)]


def _print(lines: "Sequence[Line]", *, as_json: bool) -> None:
    if as_json:
        print_json({"lines": [line.row() for line in lines]})
        return
    rows = [
        {
            **line.row(),
            "shown": None if line.value is None else f"{line.value:g} {line.unit}",
            "needed_text": None if line.needed is None else _needed(line.needed, line.unit),
        }
        for line in lines
    ]
    print_rows(COLUMNS, rows, title=counted(len(rows), "measurement"))
    if any("round trip" in line.what for line in lines):
        print_status(
            "The network was measured from this machine. Run it on a node's host to measure between nodes."
        )


def _needed(value: float, unit: str) -> str:
    return f"at most {value:g} {unit}" if unit == "ms" else f"at least {value:g} {unit}"
