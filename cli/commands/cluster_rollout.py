"""`tierlog cluster rollout`: a rolling restart, upgrade or replacement of hosts, one after the other."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, ExitCode, unreachable, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, DryRun, Json, finite
from tierlog.cli.output import console, counted, duration, print_json, print_rows, print_status

if TYPE_CHECKING:
    from tierlog.broker.diagnosis.evidence import Answers
    from tierlog.cli.rollout import Doubt, Rollout, Step
    from tierlog.cli.rollout_run import StateFile, Tell
    from tierlog.cli.targets import Target

COLUMNS = {
    "step": "step",
    "host": "host",
    "nodes": "nodes",
    "roles": "roles",
    "build": "build",
    "state": "state",
}
WAIT_S, COMMAND_TIMEOUT_S = 3600.0, 1800.0
CLUSTER_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
GO_ON = "Then run the same command again: it continues from there."
START_OVER = "--start-over"

Hosts = Annotated[
    str,
    typer.Option(
        "--hosts",
        metavar="NAME[,NAME...]",
        help="Hosts, by the names in their nodes' admin URLs, or ids of nodes. `hosts` stands for all hosts, "
        "`nodes` for all nodes, one by one.",
    ),
]
Commands = Annotated[
    list[str] | None,
    typer.Option(
        "--command",
        metavar="TEXT",
        help="Shell command that restarts a host's nodes. {host}, {nodes} (ids) and {version} are replaced. "
        "May be repeated: they run in order, for example stop, upgrade, start.",
    ),
]
CommandFile = Annotated[
    Path | None,
    typer.Option(
        "--steps",
        exists=True,
        dir_okay=False,
        help="File with the commands, one a line; lines that begin with # are comments.",
    ),
]
ToVersion = Annotated[
    str | None,
    typer.Option(
        "--to-version",
        metavar="VERSION",
        help="Version, or commit, that each node must run afterwards. Hosts that run it already are skipped.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=1,
        callback=finite,
        metavar="SECONDS",
        help="Stop if a host's nodes and all replicas are not back within this time.",
    ),
]
CommandTimeout = Annotated[
    float,
    typer.Option("--command-timeout", min=1, callback=finite, metavar="SECONDS", help="Time for a command."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="RULE",
        help="Continue despite problems of this rule of `tierlog doctor --json`, such as certificate or "
        "object-store. May be repeated.",
    ),
]
AllowUnavailable = Annotated[
    bool,
    typer.Option(
        "--allow-unavailable",
        help="Restart nodes even if partitions without enough replicas, or the quorum, wait for them.",
    ),
]
ByHand = Annotated[
    bool,
    typer.Option(
        "--by-hand",
        help="What the commands had left to do at the step where it stopped was done by hand: the step "
        "is done once its nodes have restarted and run the version.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", dir_okay=False, help="File that keeps how far it is. Default: one for each cluster."
    ),
]
StartOver = Annotated[
    bool, typer.Option(START_OVER, help="Forget a rollout that has not ended, and begin this one.")
]


def rollout(
    hosts: Hosts,
    commands: Commands = None,
    steps: CommandFile = None,
    to_version: ToVersion = None,
    wait: Wait = WAIT_S,
    command_timeout: CommandTimeout = COMMAND_TIMEOUT_S,
    ignore: Ignore = None,
    allow_unavailable: AllowUnavailable = False,
    by_hand: ByHand = False,
    state: State = None,
    start_over: StartOver = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Restart, upgrade or replace the hosts of a cluster one after the other, by commands of yours.

    Before each host it checks that the cluster is whole and can spare it, and hands its leaderships over.
    Afterwards it waits until the nodes have restarted, run the version, and all replicas are in sync. Voters
    come after brokers, the leader of the quorum last. It stops at the first doubt; the same command continues
    from there.

    Exit codes: 5 at a doubt, 1 if a command fails.
    """
    from tierlog.cli.cluster_watch import interruptible
    from tierlog.cli.rollout_run import RolloutRun, StateFile
    from tierlog.cli.targets import announce_target

    ignored = _rules(ignore or [])
    answers, target = _answers(admin, bootstrap)
    cluster_id = _cluster_id(answers)
    if not dry_run:
        announce_target(target)
    file = StateFile(state) if state else StateFile.default(cluster_id)
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    with file.lock():
        before = None if start_over else file.load()
        done = _planned(names, _texts(commands, steps), to_version, answers, cluster_id, before)
        if before is not None:
            _say_that_it_continues(done, file)
        with _progress(done) as tell:
            run = RolloutRun(
                done,
                file,
                answers.urls.values(),
                wait_s=wait,
                command_timeout_s=command_timeout,
                ignored=ignored,
                allow_unavailable=allow_unavailable,
                by_hand=by_hand,
                tell=tell,
            )
            doubts = run.doubts() if dry_run else []
            with interruptible():  # so that its command ends with it
                stopped = None if dry_run else _run(run.steps(), tell)
        if dry_run:
            _show_plan(done, answers, doubts, as_json=as_json)
            return
        _finish(done, file, stopped, as_json=as_json)


def _run(steps: "Iterator[Step]", tell: "Tell") -> CliError | None:
    """The error at which it stopped, if any."""
    try:
        for step in steps:
            tell(f"{step.name}: done in {duration(1000 * (step.seconds or 0))}")
    except CliError as failure:
        return failure
    except KeyboardInterrupt:
        print_status(f"interrupted. {GO_ON}")
        raise
    return None


def _say_that_it_continues(done: "Rollout", file: "StateFile") -> None:
    """Steps that are done are not done again, which may surprise after a long time."""
    ended = sum(step.has_ended for step in done.steps)
    then = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.path.stat().st_mtime))
    progress = f"{ended} of {counted(len(done.steps), 'step')} done"
    print_status(f"continues the rollout of {then}: {progress}. --start-over begins again.")


def _finish(done: "Rollout", file: "StateFile", stopped: CliError | None, *, as_json: bool) -> None:
    """Print the outcome. Raises CliError if it has stopped."""
    if as_json:
        print_json(
            {
                "cluster_id": done.cluster_id,
                "version": done.version,
                "steps": [_row(step) for step in done.steps],
                "ended": stopped is None,
                "stopped": None if stopped is None else {"what": stopped.message, "next": stopped.hint},
                "state": str(file.path),
                "log": str(file.log),
            }
        )
    ended = sum(step.has_ended for step in done.steps)
    progress = f"{ended} of {counted(len(done.steps), 'step')} done"
    if stopped is None:
        if not as_json:
            print_status(f"{progress}; output of the commands: {file.log}")
        return
    hint = stopped.hint if START_OVER in stopped.hint else f"{stopped.hint} {GO_ON}"
    raise CliError(f"{stopped.message}\n{progress}", hint=hint, code=stopped.code)


def _planned(
    names: Sequence[str],
    commands: Sequence[str],
    version: str | None,
    answers: "Answers",
    cluster_id: str,
    before: "Rollout | None",
) -> "Rollout":
    """A new rollout, or the one that has not ended. Its commands may have been corrected. Raises CliError if
    it is of other hosts or to another version."""
    from tierlog.cli.rollout import check_commands, nodes_of, plan

    if before is None:
        return plan(names, nodes_of(answers), cluster_id=cluster_id, commands=commands, version=version)
    check_commands(commands, version)
    if before.cluster_id != cluster_id:
        raise usage(
            f"the state file belongs to a rollout of cluster {before.cluster_id}, not of {cluster_id}",
            hint="Name another file with --state.",
        )
    if before.hosts != tuple(names) or before.version != version:
        to = f" to version {before.version}" if before.version else ""
        left = [step.name for step in before.steps if not step.has_ended]
        raise usage(
            f"another rollout has not ended: of {','.join(before.hosts)}{to}, with {', '.join(left)} left",
            hint="Continue it by the same --hosts and --to-version, or forget it with --start-over.",
        )
    if before.commands != tuple(commands):
        before.commands = tuple(commands)
        for step in before.steps:
            step.commands = 0
    return before


def _answers(admin: str | None, bootstrap: str | None) -> "tuple[Answers, Target]":
    """The responses of all nodes, and how they were found. Raises CliError if no node responds."""
    from tierlog.broker.diagnosis.evidence import HEALTH_PATHS
    from tierlog.cli.admin import AdminApi, admin_target, split_urls
    from tierlog.cli.observation import TIMEOUT_S, ask
    from tierlog.cli.targets import Target

    target = admin_target(admin, bootstrap)
    urls = split_urls(target)
    answers = ask(urls, HEALTH_PATHS)
    if not answers.documents:
        AdminApi(urls[0], timeout_s=TIMEOUT_S).get("/v1/quorum")  # its error says more
        raise unreachable(", ".join(urls), "no node responds")
    return answers, Target(urls[0], target.found)


def _cluster_id(answers: "Answers") -> str:
    from tierlog.broker.diagnosis.evidence import QUORUM

    found = str(next(iter(answers.of(QUORUM).values()))["cluster_id"])
    if not CLUSTER_ID.fullmatch(found):  # it becomes a part of a file's name
        raise CliError(
            f"a server that is not a node responds: it gives {found[:80]!r} as the cluster's id",
            hint="Give the address of a node with --admin.",
        )
    return found


def _texts(commands: list[str] | None, steps: Path | None) -> list[str]:
    """The commands. Raises CliError if they are given twice, or the file cannot be read."""
    if steps is None:
        return commands or []
    if commands:
        raise usage("commands are given twice", hint="Use either --command or --steps.")
    try:
        lines = [line.strip() for line in steps.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as failure:
        raise usage(
            f"cannot read {steps}: {failure}", hint="It is a text with a command on each line."
        ) from None
    return [line for line in lines if line and not line.startswith("#")]


def _rules(given: list[str]) -> list[str]:
    from tierlog.cli.rollout import IGNORABLE_RULES

    for rule in given:
        if rule not in IGNORABLE_RULES:
            raise usage(f"--ignore cannot be {rule!r}", hint=f"Use one of {', '.join(IGNORABLE_RULES)}.")
    return given


def _row(step: "Step") -> dict[str, Any]:
    return {
        "step": step.name,
        "host": step.host,
        "nodes": list(step.nodes),
        "state": step.state,
        "seconds": step.seconds,
    }


def _show_plan(done: "Rollout", answers: "Answers", doubts: "Sequence[Doubt]", *, as_json: bool) -> None:
    """Print the steps in their order, with their commands. Raises Exit if the cluster is not whole."""
    from tierlog.broker.diagnosis.evidence import observation_of
    from tierlog.cli.rollout import nodes_of

    nodes, leader = nodes_of(answers), observation_of(answers).leader
    rows = []
    for step in done.order(leader):
        members = [nodes[one] for one in step.nodes if one in nodes]
        roles = {
            "broker": any(one.is_broker for one in members),
            "voter": any(one.is_voter for one in members),
        }
        roles["leader of the quorum"] = leader in step.nodes
        rows.append(
            {
                **_row(step),
                "roles": [role for role, has_it in roles.items() if has_it],
                "build": sorted({one.version or "?" for one in members}),
                "commands": [done.command(number, step) for number in range(len(done.commands))],
            }
        )
    if as_json:
        print_json({"cluster_id": done.cluster_id, "steps": rows, "doubts": [one.what for one in doubts]})
    else:
        print_rows(COLUMNS, rows, title=f"Rollout of cluster {done.cluster_id}")
        for row in rows:
            for command in row["commands"] if row["state"] != "done" else ():
                print_status(f"{row['step']}: {command}")
        for doubt in doubts:
            print_status(f"It would not begin: {doubt.what}. {doubt.next}")
    if doubts:
        raise typer.Exit(int(ExitCode.DEGRADED))


@contextmanager
def _progress(done: "Rollout") -> "Iterator[Tell]":
    """A bar of the steps on a terminal; elsewhere a line for each event."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield print_status
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=len(done.steps), what="")

        def tell(text: str) -> None:
            bar.update(task, completed=sum(step.has_ended for step in done.steps), what=text)

        yield tell
