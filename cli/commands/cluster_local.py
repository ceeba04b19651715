"""`tierlog cluster up|down|start|stop|kill|pause|resume|status`: a cluster of processes on this machine."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.options import Json, Settings, make_directory

if TYPE_CHECKING:
    from tierlog.cli.cluster_files import ClusterPlan
    from tierlog.cli.cluster_processes import ProcessState

LOG_LINES = 15
"""Of the log of a node that did not start: the end of it says why."""


PATIENCE_S = 60.0
"""For the clean stop of one node: controlled.shutdown.timeout.ms is half of it."""


def _node_ids() -> list[str]:
    """For the shell's completion."""
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory else None
    return [str(node.id) for node in plan.nodes] if plan else []


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", "-d", help="The cluster's directory. Default: that which was started last."),
]
Nodes = Annotated[
    list[int], typer.Argument(metavar="NODE...", help="Ids of nodes.", autocompletion=_node_ids)
]
Away = Annotated[
    list[int] | None,
    typer.Argument(metavar="[NODE]...", help="Ids of nodes; without any: all.", autocompletion=_node_ids),
]


def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, max=99, help="How many brokers. Default: 3.")
    ] = None,
    voters: Annotated[
        int | None,
        typer.Option(
            "--voters",
            min=0,
            max=7,
            help="Nodes that only vote on the metadata; the others then only serve clients. "
            "Default: 0, each node does both.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            help="Keep the cluster here, or go on with the one that is here. "
            "Default: a temporary directory, removed with `down`.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            min=0,
            max=65_000,
            metavar="BASE",
            help="Port of the first node for Kafka clients; the others follow it, and the admin APIs are 552 "
            "above. 0 picks free ones for all. Default: 9092, and so 9644.",
        ),
    ] = None,
    sets: Settings = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as all nodes serve.")] = False,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, and show how it does. Ctrl-C stops all of it."""
    from tierlog.cli import cluster_files, cluster_processes, cluster_watch
    from tierlog.cli.options import parse_pairs
    from tierlog.cli.output import done, print_json

    directory, plan = _planned(data_dir, nodes, voters, port, parse_pairs(sets, "--set"))
    _check_settings(plan)
    make_directory(directory, "--data-dir")
    if not detach and _running(directory, plan) and not as_json:
        done("some nodes run already: the rest joins them, and Ctrl-C will stop all")
    if len(plan.apart or plan.brokers) == 2:
        done("two voters are no safer than one: neither has a majority without the other")
    with cluster_watch.interruptible():
        try:
            with cluster_files.undone_if_it_fails(directory, plan):
                _start(directory, plan, [node.id for node in plan.nodes])
            if as_json:
                print_json(_document(directory, plan))
            else:
                beside = f", {len(plan.apart)} vote" if plan.apart else ""
                done(f"{len(plan.brokers)} nodes serve Kafka clients at {plan.bootstrap}{beside}")
            if not detach:
                cluster_watch.watch(directory, plan, quiet=as_json)
        except KeyboardInterrupt:
            _take_down(directory, plan)
        except BaseException:
            _stop(directory, plan, _running(directory, plan), cluster_processes.STOP_TIMEOUT_S)
            raise


def down(
    data_dir: DataDir = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Stop all nodes of the cluster. Its data stays, unless it lies in a temporary directory.

    Without --data-dir this is the cluster that was started last: the command names it and asks.
    """
    from tierlog.cli import cluster_files
    from tierlog.cli.options import confirm
    from tierlog.cli.output import print_done

    directory, plan = cluster_files.chosen(data_dir)
    if data_dir is None and not yes:
        loss = ", and remove all its data" if plan.temporary else ""
        confirm(f"Stop the cluster in {directory} (Kafka at {plan.bootstrap}){loss}?")
    stopped, killed = _take_down(directory, plan)
    print_done(
        f"stopped {_named(stopped)}" + (f"; {_named(killed)} did not stop in time: killed" if killed else ""),
        {"directory": str(directory), "stopped": stopped, "killed": killed},
        as_json=as_json,
    )


def start(nodes: Away = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Start nodes that are down, and wait until they serve. Name as many at once as make a majority."""
    from tierlog.cli.cluster_processes import ProcessState

    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes or None)
    away = [one for one, state in states.items() if state is ProcessState.DOWN]
    if nodes:
        _require(states, away, "runs already")
    _start(directory, plan, away)
    _tell("started", away, as_json=as_json)


def stop(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Stop nodes clean: each hands over what it leads first."""
    from tierlog.cli.cluster_processes import ProcessState
    from tierlog.cli.errors import CliError

    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes)
    running = [one for one, state in states.items() if state is not ProcessState.DOWN]
    _require(states, running, "does not run")
    killed = _stop(directory, plan, running, PATIENCE_S)
    if killed:
        raise CliError(f"{_named(killed)} did not stop in {PATIENCE_S:g} s and had to be killed")
    _tell("stopped", running, as_json=as_json)


def kill(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Kill nodes (SIGKILL), as a crash would."""
    from tierlog.cli import cluster_processes
    from tierlog.cli.cluster_processes import ProcessState

    running = (ProcessState.UP, ProcessState.PAUSED)
    _each(nodes, data_dir, running, "does not run", "killed", cluster_processes.kill, as_json=as_json)


def pause(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Pause nodes (SIGSTOP): they keep their connections, and answer nobody."""
    from tierlog.cli.cluster_processes import ProcessState

    _each(
        nodes, data_dir, (ProcessState.UP,), "is not up", "paused", _sender(signal.SIGSTOP), as_json=as_json
    )


def resume(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Let paused nodes go on (SIGCONT)."""
    from tierlog.cli.cluster_processes import ProcessState

    _each(
        nodes,
        data_dir,
        (ProcessState.PAUSED,),
        "is not paused",
        "resumed",
        _sender(signal.SIGCONT),
        as_json=as_json,
    )


def status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the processes of the cluster, and what each node says of itself."""
    from tierlog.cli import cluster_files, cluster_watch

    directory, plan = cluster_files.chosen(data_dir)
    cluster_watch.show(directory, plan, as_json=as_json)


# --- up and down


def _planned(
    data_dir: Path | None, nodes: int | None, voters: int | None, port: int | None, settings: dict[str, str]
) -> "tuple[Path, ClusterPlan]":
    """The cluster that lies there, or a new one. Raises CliError if what is asked does not fit it."""
    import tempfile

    from tierlog.cli import cluster_files
    from tierlog.cli.errors import CliError, usage

    last = cluster_files.last_started()
    if data_dir is None and last is not None and (known := cluster_files.load(last)):
        if known.temporary:
            data_dir = last
        if _running(last, known):
            hint = "`tierlog cluster down` stops it; --data-dir starts another beside it."
            raise CliError(f"the cluster in {last} runs", hint=hint)
    plan = cluster_files.load(data_dir) if data_dir is not None else None
    if data_dir is not None and plan is not None:
        for what, asked, present in (
            ("nodes", nodes, len(plan.brokers)),
            ("voters", voters, len(plan.apart)),
            ("port", port or None, plan.nodes[0].port),
        ):
            if asked not in (None, present):
                hint = "Its `down` ends it; another --data-dir begins another one."
                raise usage(f"the cluster in {data_dir} has --{what} {present}, not {asked}", hint)
        return data_dir.absolute(), cluster_files.with_settings(plan, settings)
    plan = cluster_files.new_plan(
        nodes or 3,
        voters=voters or 0,
        base_port=cluster_files.FIRST_PORT if port is None else port,
        settings=settings,
        temporary=data_dir is None,
    )
    if taken := cluster_files.taken(plan.ports):
        listed = ", ".join(map(str, taken))
        raise CliError(f"somebody listens on port {listed}", hint="--port 0 picks free ports for all.")
    made = Path(tempfile.mkdtemp(prefix="tierlog-cluster-")) if data_dir is None else data_dir.absolute()
    return made, plan


def _check_settings(plan: "ClusterPlan") -> None:
    """Before anything is kept or started; raises CliError."""
    from tierlog.cli.commands.dev import DEV_SETTINGS
    from tierlog.cli.node import read_settings

    node = plan.nodes[0]
    own = {"node.id": str(node.id), "process.roles": ",".join(node.roles)}
    own["controller.quorum.secret"] = plan.secret
    read_settings(defaults={**DEV_SETTINGS, **own}, environment={}, options=plan.all_settings())


def _start(directory: Path, plan: "ClusterPlan", node_ids: list[int]) -> None:
    """Those of them that are down; paused ones are left alone."""
    from tierlog.cli import cluster_processes, local_cluster
    from tierlog.cli.cluster_processes import ProcessState
    from tierlog.cli.errors import CliError
    from tierlog.cli.process import BrokerFailed

    states = cluster_processes.states(directory, plan)
    cluster = local_cluster.LocalCluster(directory, plan=plan, detached=True)
    try:
        cluster.start([one for one in node_ids if states[one] is ProcessState.DOWN])
    except BrokerFailed as failure:
        first, *log = str(failure).splitlines()
        raise CliError(
            "\n".join([first, *log[-LOG_LINES:]]), hint=f"Logs: {directory}/node-*/broker.log"
        ) from None


def _take_down(directory: Path, plan: "ClusterPlan") -> tuple[list[int], list[int]]:
    """Nodes that ended clean, and those that had to be killed."""
    import shutil

    from tierlog.cli import cluster_files, cluster_processes

    running = _running(directory, plan)
    cluster_files.forget(directory)  # first: who watches it ends
    killed = _stop(directory, plan, running, cluster_processes.STOP_TIMEOUT_S)
    if plan.temporary:
        shutil.rmtree(directory, ignore_errors=True)
    return [one for one in running if one not in killed], killed


def _stop(directory: Path, plan: "ClusterPlan", node_ids: list[int], timeout_s: float) -> list[int]:
    """Ends nodes clean, and returns those that had to be killed. Brokers first: voters let them hand over."""
    from tierlog.cli import cluster_processes

    apart = {node.id for node in plan.apart}
    rounds = [one for one in node_ids if one not in apart], [one for one in node_ids if one in apart]
    return [killed for some in rounds for killed in cluster_processes.stop(directory, some, timeout_s)]


def _document(directory: Path, plan: "ClusterPlan") -> dict[str, object]:
    from tierlog.cli import cluster_files, cluster_processes

    return {
        "cluster_id": plan.cluster_id,
        "directory": str(directory),
        "bootstrap": plan.bootstrap,
        "nodes": [
            {
                "node": node.id,
                "roles": list(node.roles),
                "bootstrap": node.bootstrap,
                "admin": node.admin_url,
                "pid": cluster_processes.pid_of(cluster_files.node_directory(directory, node.id)),
            }
            for node in plan.nodes
        ],
    }


# --- nodes


def _target(data_dir: Path | None) -> "tuple[Path, ClusterPlan]":
    """The cluster whose nodes are meant, printed if it was not named. Raises CliError."""
    from tierlog.cli import cluster_files
    from tierlog.cli.where import announce

    directory, plan = cluster_files.chosen(data_dir)
    if data_dir is None:
        announce(f"the local cluster in {directory}")
    return directory, plan


def _each(
    nodes: list[int],
    data_dir: Path | None,
    expected: "tuple[ProcessState, ...]",
    otherwise: str,
    did: str,
    work: Callable[[Path, int], bool],
    *,
    as_json: bool,
) -> None:
    """Nothing is done unless all of them are in a state that it makes sense in."""
    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes)
    _require(states, [one for one, state in states.items() if state in expected], otherwise)
    for one in states:
        work(directory, one)
    _tell(did, list(states), as_json=as_json)


def _sender(number: signal.Signals) -> Callable[[Path, int], bool]:
    from tierlog.cli import cluster_files, cluster_processes

    return lambda directory, node: cluster_processes.send(
        cluster_files.node_directory(directory, node), number
    )


def _states(directory: Path, plan: "ClusterPlan", nodes: list[int] | None) -> "dict[int, ProcessState]":
    """Of these nodes, or of all; raises CliError if there is no such node."""
    from tierlog.cli import cluster_processes
    from tierlog.cli.errors import usage

    states = cluster_processes.states(directory, plan)
    if unknown := [one for one in nodes or () if one not in states]:
        raise usage(
            f"the cluster in {directory} has no {_named(unknown)}", hint=f"It has {_named(list(states))}."
        )
    return states if nodes is None else {one: states[one] for one in dict.fromkeys(nodes)}


def _require(states: "dict[int, ProcessState]", fit: list[int], otherwise: str) -> None:
    from tierlog.cli.errors import CliError

    for one in states:
        if one not in fit:
            raise CliError(f"node {one} {otherwise}", hint="`tierlog cluster status` shows all of them.")


def _running(directory: Path, plan: "ClusterPlan") -> list[int]:
    from tierlog.cli import cluster_processes
    from tierlog.cli.cluster_processes import ProcessState

    states = cluster_processes.states(directory, plan)
    return [one for one, state in states.items() if state is not ProcessState.DOWN]


def _tell(did: str, nodes: list[int], *, as_json: bool) -> None:
    from tierlog.cli.output import print_done

    print_done(f"{did} {_named(nodes)}", {did: nodes}, as_json=as_json)


def _named(nodes: list[int]) -> str:
    if not nodes:
        return "no node"
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, nodes))
