"""`tierlog cluster up|down|start|stop|kill|pause|resume|status`: a local cluster of node processes."""

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import Json, Settings, Yes, confirm, make_directory, node_settings
from tierlog.cli.output import counted, print_json, print_outcome, print_status

if TYPE_CHECKING:
    from tierlog.broker.diagnosis.evidence import ProcessState
    from tierlog.cli.cluster_files import ClusterPlan

LOG_LINES = 15
"""Last lines of a node's log that are printed if it does not start."""

NODE_STOP_TIMEOUT_S = 60.0
"""Time for the shutdown of one node: twice the default of controlled.shutdown.timeout.ms."""


def _node_ids() -> list[str]:
    """Node ids for shell completion."""
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory else None
    return [str(node.id) for node in plan.nodes] if plan else []


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", "-d", help="The cluster's directory. Default: the cluster started last."),
]
Nodes = Annotated[
    list[int], typer.Argument(metavar="NODE...", help="Ids of nodes.", autocompletion=_node_ids)
]
OptionalNodes = Annotated[
    list[int] | None,
    typer.Argument(metavar="[NODE]...", help="Ids of nodes. Default: all.", autocompletion=_node_ids),
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Create a cluster with TLS, users (SCRAM) and ACLs, and a file with the administrator's client "
        "settings.",
    ),
]


def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, max=99, help="Number of brokers. Default: 3.")
    ] = None,
    voters: Annotated[
        int | None,
        typer.Option(
            "--voters",
            min=0,
            max=7,
            help="Number of dedicated controller nodes; the other nodes are then only brokers. "
            "Default: 0, each node is both.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            help="Keep the cluster in this directory, or start the cluster that is in it. "
            "Default: a temporary directory, which `down` removes.",
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
            help="Kafka port of the first node; the others follow it, and admin ports are 552 higher. "
            "0 picks free ports. Default: 9092 (admin 9644).",
        ),
    ] = None,
    sets: Settings = None,
    secure: Secure = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return once all nodes serve.")] = False,
    as_json: Json = False,
) -> None:
    """Start a local cluster and show its state. Ctrl-C stops all nodes."""
    from tierlog.cli import cluster_files, cluster_processes, cluster_watch

    directory, plan = _planned(data_dir, nodes, voters, port, node_settings(sets), secure=secure)
    _check_settings(directory, plan)
    make_directory(directory, "--data-dir")
    if not detach and _running(directory, plan) and not as_json:
        print_status("some nodes are already running; Ctrl-C will stop all nodes")
    _warn_of_even_voters(len(plan.voters))
    with cluster_watch.interruptible():
        try:
            with cluster_files.rollback_on_failure(directory, plan):
                _start(directory, plan, [node.id for node in plan.nodes])
            if as_json:
                print_json(_document(directory, plan))
            else:
                _print_started(directory, plan, detached=detach)
            if not detach:
                cluster_watch.watch(directory, plan, quiet=as_json)
        except KeyboardInterrupt:
            _take_down(directory, plan)
        except BaseException:
            _stop(directory, plan, _running(directory, plan), cluster_processes.STOP_TIMEOUT_S)
            raise


def _print_started(directory: Path, plan: "ClusterPlan", *, detached: bool) -> None:
    print_status(started_message(plan))
    if plan.secure:
        print_status(login_message(directory))
    if detached:
        print_status(next_steps(directory, plan))
    if warning := profile_warning(plan):
        print_status(warning)


def _warn_of_even_voters(voters: int) -> None:
    if voters == 2:
        print_status("with two voters, the quorum stops when one of them fails; use one or three")
    elif voters % 2 == 0:
        print_status(f"{voters} voters tolerate no more failures than {voters - 1}")


def started_message(plan: "ClusterPlan") -> str:
    controllers = (
        f"; {counted(len(plan.controllers_only), 'controller node')}" if plan.controllers_only else ""
    )
    serve = "serves" if len(plan.brokers) == 1 else "serve"
    return f"{counted(len(plan.brokers), 'broker')} {serve} Kafka clients at {plan.bootstrap}{controllers}"


def login_message(directory: Path) -> str:
    """How clients and commands log in to a secure cluster."""
    from tierlog.cli.local_security import LocalSecurity

    file = LocalSecurity(directory).client_file
    return (
        f"It needs TLS and a login. Client settings of the administrator: {file}\n"
        "Commands with your account use this file by themselves. Kafka's tools take it as --command-config, "
        f"and commands of others need: export TIERLOG_CLIENT_CONFIG={file}"
    )


def profile_warning(plan: "ClusterPlan") -> str:
    """Commands go to the cluster of the profile in use, not to this one. Empty without a profile."""
    from tierlog.cli.profiles import name_in_use

    name = name_in_use()
    if not name:
        return ""
    return (
        f"The profile {name} is in use: commands without addresses go to its cluster. For this one, "
        f"give --bootstrap {plan.bootstrap} or set TIERLOG_BOOTSTRAP."
    )


def next_steps(directory: Path, plan: "ClusterPlan") -> str:
    """Directory, admin API and commands of a detached cluster."""
    kept = "which `tierlog cluster down` removes" if plan.temporary else "which `tierlog cluster down` keeps"
    store = plan.settings.get("object.store.url") or f"file://{directory.absolute() / 'objects'}"
    return (
        f"Admin API: {plan.nodes[0].admin_url}. Data: {directory}, {kept}.\n"
        f"Spark reads the history of tiered topics from the path {store}.\n"
        "See its state with `tierlog cluster status` and `tierlog cluster health`; stop it with "
        "`tierlog cluster down`."
    )


def down(data_dir: DataDir = None, yes: Yes = False, as_json: Json = False) -> None:
    """Stop all nodes of the cluster. Its data is kept, unless it is in a temporary directory.

    Without --data-dir, stops the cluster that was started last, after confirmation.
    """
    from tierlog.cli import cluster_files
    from tierlog.cli.targets import announce_target

    directory, plan = cluster_files.find_cluster(data_dir)
    if data_dir is None and not yes:
        loss = " and remove all its data" if plan.temporary else ""
        confirm(f"Stop the cluster in {directory} (Kafka at {plan.bootstrap}){loss}?")
    elif data_dir is None:
        announce_target(f"the local cluster in {directory}")
    stopped, killed = _take_down(directory, plan)
    print_outcome(
        f"stopped {_named(stopped)}"
        + (f"; {_named(killed)} did not stop in time and had to be killed" if killed else "")
        + ("; the data is removed" if plan.temporary else f"; the data stays in {directory}"),
        {"directory": str(directory), "stopped": stopped, "killed": killed, "removed": plan.temporary},
        as_json=as_json,
    )


def start(nodes: OptionalNodes = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Start nodes that are down, and wait until they serve. A majority of the voters must run."""
    from tierlog.broker.diagnosis.evidence import ProcessState

    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes or None)
    stopped = [one for one, state in states.items() if state is ProcessState.DOWN]
    if nodes:
        _require(states, stopped, "is already running")
    if stopped:
        _start(directory, plan, stopped)
    if stopped or as_json:
        _print_nodes("started", stopped, as_json=as_json)
    else:
        print_status("no node is down")


def stop(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Stop nodes (SIGTERM) with controlled shutdown: each hands over its leaderships first."""
    from tierlog.broker.diagnosis.evidence import ProcessState

    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes)
    running = [one for one, state in states.items() if state is not ProcessState.DOWN]
    _require(states, running, "is not running")
    killed = _stop(directory, plan, running, NODE_STOP_TIMEOUT_S)
    if killed:
        raise CliError(
            f"{_named(killed)} did not stop within {NODE_STOP_TIMEOUT_S:g} s and had to be killed",
            hint="The next start checks the logs, as after a crash: `tierlog cluster start`.",
        )
    _print_nodes("stopped", running, as_json=as_json)


def kill(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Kill nodes (SIGKILL), as in a crash."""
    _send(signal.SIGKILL, nodes, data_dir, as_json=as_json)


def pause(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Pause nodes (SIGSTOP): they keep their connections open, and do not respond."""
    _send(signal.SIGSTOP, nodes, data_dir, as_json=as_json)


def resume(nodes: Nodes, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Resume paused nodes (SIGCONT)."""
    _send(signal.SIGCONT, nodes, data_dir, as_json=as_json)


def status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the processes of the cluster, and the state of each node."""
    from tierlog.cli import cluster_files, cluster_watch

    directory, plan = cluster_files.find_cluster(data_dir)
    cluster_watch.show(directory, plan, as_json=as_json)


# --- up and down


def _planned(
    data_dir: Path | None,
    nodes: int | None,
    voters: int | None,
    port: int | None,
    settings: dict[str, str],
    *,
    secure: bool,
) -> "tuple[Path, ClusterPlan]":
    """The cluster in the directory, or a new one. Raises CliError if the options contradict the existing
    one."""
    import tempfile

    from tierlog.cli import cluster_files

    last = cluster_files.last_started()
    if data_dir is None and last is not None and (known := cluster_files.load(last)):
        if known.temporary:
            data_dir = last
        if _running(last, known):
            hint = "Stop it with `tierlog cluster down`, or start another one with --data-dir."
            raise CliError(f"the cluster in {last} is already running", hint=hint)
    plan = cluster_files.load(data_dir) if data_dir is not None else None
    if data_dir is not None and plan is not None:
        for what, requested, present in (
            ("nodes", nodes, len(plan.brokers)),
            ("voters", voters, len(plan.controllers_only)),
            ("port", port or None, plan.nodes[0].port),
        ):
            if requested not in (None, present):
                hint = "Omit the option, or create another cluster with another --data-dir."
                raise usage(f"the cluster in {data_dir} has --{what} {present}, not {requested}", hint)
        if secure and not plan.secure:
            hint = "docs/howto/secure-a-cluster.md closes it; --data-dir with another directory creates one."
            raise usage(f"the cluster in {data_dir} was created without --secure", hint)
        return data_dir.absolute(), cluster_files.with_settings(plan, settings)
    plan = cluster_files.new_plan(
        nodes or 3,
        voters=voters or 0,
        base_port=cluster_files.DEFAULT_BASE_PORT if port is None else port,
        settings=settings,
        temporary=data_dir is None,
        secure=secure,
    )
    if in_use := cluster_files.ports_in_use(plan.ports):
        listed = ", ".join(map(str, in_use))
        raise CliError(f"port {listed} is in use", hint="Use --port 0 to pick free ports.")
    made = Path(tempfile.mkdtemp(prefix="tierlog-cluster-")) if data_dir is None else data_dir.absolute()
    return made, plan


def _check_settings(directory: Path, plan: "ClusterPlan") -> None:
    """Validate the settings before anything is saved or started. Raises CliError."""
    from tierlog.cli.commands.dev import DEV_SETTINGS
    from tierlog.cli.node import read_settings

    node = plan.nodes[0]
    own = {"node.id": str(node.id), "process.roles": ",".join(node.roles)}
    own["controller.quorum.secret"] = plan.secret
    if plan.secure:
        from tierlog.cli.local_security import LocalSecurity

        own |= LocalSecurity(directory).settings(node.port, login="to be created")
    read_settings(defaults={**DEV_SETTINGS, **own}, environment={}, options=plan.all_settings())


def _start(directory: Path, plan: "ClusterPlan", node_ids: list[int]) -> None:
    """Start the given nodes that are down; paused nodes stay paused."""
    from tierlog.broker.diagnosis.evidence import ProcessState
    from tierlog.cli import cluster_processes, local_cluster
    from tierlog.cli.process import BrokerFailed

    states = cluster_processes.states(directory, plan)
    cluster = local_cluster.LocalCluster(directory, plan=plan, detached=True)
    running = {one for one, state in states.items() if state is ProcessState.UP} | set(node_ids)
    voting = len([node for node in plan.voters if node.id in running])
    lacks_majority = voting <= len(plan.voters) // 2
    if lacks_majority:
        print_status(
            f"{voting} of {len(plan.voters)} voters will run, which may not be a majority: a node that finds "
            "no quorum gives up after a minute"
        )
    try:
        cluster.start([one for one in node_ids if states[one] is ProcessState.DOWN])
    except BrokerFailed as failure:
        first, *log = str(failure).splitlines()
        hint = f"Logs: {directory}/node-*/broker.log"
        if lacks_majority:
            hint = f"A majority of the voters must run: `tierlog cluster start` starts all nodes. {hint}"
        raise CliError("\n".join([first, *log[-LOG_LINES:]]), hint=hint) from None


def _take_down(directory: Path, plan: "ClusterPlan") -> tuple[list[int], list[int]]:
    """Stop the cluster. Returns the nodes that stopped cleanly, and those that had to be killed."""
    from tierlog.cli import cluster_files, cluster_processes

    running = _running(directory, plan)
    cluster_files.clear_last_started(directory)  # first, so that a running `cluster up` ends
    killed = _stop(directory, plan, running, cluster_processes.STOP_TIMEOUT_S)
    if plan.temporary:
        shutil.rmtree(directory, ignore_errors=True)
    return [one for one in running if one not in killed], killed


def _stop(directory: Path, plan: "ClusterPlan", node_ids: list[int], timeout_s: float) -> list[int]:
    """Stop nodes, and return those that had to be killed. Brokers stop first: controlled shutdown needs the
    quorum. Raises CliError if a node runs even after SIGKILL."""
    from tierlog.cli import cluster_processes

    last = {node.id for node in plan.controllers_only}
    rounds = [one for one in node_ids if one not in last], [one for one in node_ids if one in last]
    killed = [one for some in rounds for one in cluster_processes.stop(directory, some, timeout_s)]
    _require_ended(directory, plan, node_ids)
    return killed


def _require_ended(directory: Path, plan: "ClusterPlan", node_ids: list[int]) -> None:
    """Raises CliError if one of the nodes, which got SIGKILL, still runs."""
    from tierlog.cli.cluster_processes import STOP_TIMEOUT_S

    if left := [one for one in _running(directory, plan) if one in node_ids]:
        raise CliError(
            f"{_named(left)} did not end within {STOP_TIMEOUT_S:g} s after SIGKILL",
            hint="A process that waits for a disk in the kernel ends once the disk responds. See its state "
            f"with `tierlog cluster status --data-dir {directory}`.",
        )


def _document(directory: Path, plan: "ClusterPlan") -> dict[str, object]:
    from tierlog.cli import cluster_files, cluster_processes
    from tierlog.cli.local_security import LocalSecurity

    return {
        "cluster_id": plan.cluster_id,
        "directory": str(directory),
        "client_config": str(LocalSecurity(directory).client_file) if plan.secure else None,
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
    """The chosen cluster; prints it if --data-dir was not given. Raises CliError."""
    from tierlog.cli import cluster_files
    from tierlog.cli.targets import announce_target

    directory, plan = cluster_files.find_cluster(data_dir)
    if data_dir is None:
        announce_target(f"the local cluster in {directory}")
    return directory, plan


_SIGNALS = {
    signal.SIGKILL: ("killed", ("up", "paused"), "is not running"),
    signal.SIGSTOP: ("paused", ("up",), "is {state}"),
    signal.SIGCONT: ("resumed", ("paused",), "is not paused"),
}
"""For each signal: the state after it, the states in which a node may get it, and the error in others
(`{state}`: the node's)."""


def _send(number: signal.Signals, nodes: list[int], data_dir: Path | None, *, as_json: bool) -> None:
    """Send a signal to nodes if all are in an expected state; after SIGKILL, wait until they have ended."""
    from tierlog.cli import cluster_files, cluster_processes

    did, expected, otherwise = _SIGNALS[number]
    directory, plan = _target(data_dir)
    states = _states(directory, plan, nodes)
    _require(states, [one for one, state in states.items() if state in expected], otherwise)
    wait_s = cluster_processes.STOP_TIMEOUT_S if number is signal.SIGKILL else 0.0
    for one in states:
        cluster_processes.send_signals(cluster_files.node_directory(directory, one), number, wait_s=wait_s)
    if number is signal.SIGKILL:
        _require_ended(directory, plan, list(states))
    _print_nodes(did, list(states), as_json=as_json)


def _states(directory: Path, plan: "ClusterPlan", nodes: list[int] | None) -> "dict[int, ProcessState]":
    """States of these nodes, or of all. Raises CliError for an unknown node."""
    from tierlog.cli import cluster_processes

    states = cluster_processes.states(directory, plan)
    if unknown := [one for one in nodes or () if one not in states]:
        raise usage(
            f"{_named(unknown)} not found in the cluster in {directory}",
            hint=f"It has {_named(list(states))}.",
        )
    return states if nodes is None else {one: states[one] for one in dict.fromkeys(nodes)}


def _require(states: "dict[int, ProcessState]", fit: list[int], otherwise: str) -> None:
    for one in states:
        if one not in fit:
            raise CliError(
                f"node {one} {otherwise.format(state=states[one])}",
                hint="See all nodes with `tierlog cluster status`.",
            )


def _running(directory: Path, plan: "ClusterPlan") -> list[int]:
    from tierlog.broker.diagnosis.evidence import ProcessState
    from tierlog.cli import cluster_processes

    states = cluster_processes.states(directory, plan)
    return [one for one, state in states.items() if state is not ProcessState.DOWN]


def _print_nodes(did: str, nodes: list[int], *, as_json: bool) -> None:
    print_outcome(f"{did} {_named(nodes)}", {did: nodes}, as_json=as_json)


def _named(nodes: list[int]) -> str:
    if not nodes:
        return "no node"
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, nodes))
