"""Driver of a rollout: asks the nodes, runs the operator's commands, and keeps the state in a file.

The file is written before and after everything that a second run must not repeat or forget, so a rollout that
was stopped at any point continues. `rollout` decides; this module does.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tierlog.broker.diagnosis.evidence import (
    HEALTH_PATHS,
    UNHEALTHY_PARTITIONS,
    Answers,
    newest_first,
    observation_of,
)
from tierlog.cli.admin import AdminApi
from tierlog.cli.cluster_files import replace_file, state_directory
from tierlog.cli.errors import CliError
from tierlog.cli.observation import ask
from tierlog.cli.output import counted
from tierlog.cli.rollout import (
    Doubt,
    Node,
    Rollout,
    Step,
    as_error,
    behind_doubts,
    cluster_doubts,
    is_untouched,
    member_doubts,
    newest_index,
    nodes_of,
    not_back,
    restarted_wrongly,
    stop_doubts,
    wrong_versions,
)

POLL_INTERVAL_S = 1.0
CHECKS = 3
"""A check that raises a doubt is repeated: a busy node may respond late once."""

REQUEST_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0
"""Time between SIGTERM and SIGKILL for a command that has run for too long."""

END_POLL_S = 0.05

OUTPUT_LINES = 15
"""Last lines of a command's output that an error has."""

Tell = Callable[[str], None]


class StateFile:
    """The state of the rollout of one cluster, and the output of its commands."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path.with_name(path.name + ".log")
        self.command = path.with_name(path.name + ".command")
        """Names the process of the command that runs, for the run after one that was killed."""

    @staticmethod
    def default(cluster_id: str) -> "StateFile":
        return StateFile(state_directory() / f"rollout-{cluster_id}.json")

    def load(self) -> Rollout | None:
        """None if no rollout is under way. Raises CliError if the file cannot be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Rollout)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as failure:
            hint = "Name another file with --state, or begin again with --start-over."
            raise CliError(f"cannot read {self.path}: {failure}", hint=hint) from None

    def save(self, rollout: Rollout) -> None:
        """Raises CliError."""
        text = msgspec.json.format(msgspec.json.encode(rollout), indent=1)
        with _writing(self.path):
            replace_file(self.path, text + b"\n")

    def open_log(self) -> BinaryIO:
        """Raises CliError."""
        with _writing(self.log):
            return open(os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def check_command(self) -> None:
        """Raises CliError while the command of a run that was killed still runs: it may stop its node at any
        time."""
        try:
            text = self.command.read_text()
        except FileNotFoundError:
            return
        process_id = text.partition(" ")[0]
        if process_id.isdecimal() and text == _process(int(process_id)):
            hint = f"Wait until it has ended, or end it with its children: kill -TERM -- -{process_id}"
            raise CliError(f"a command of a rollout that was killed still runs: {process_id}", hint=hint)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raises CliError while another command has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as failure:
            hint = "Name a file in a directory that you can write to with --state."
            raise CliError(f"cannot write {self.path}: {failure.strerror}", hint=hint) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "Wait until it has ended, or stop it with Ctrl-C."
                raise CliError("another command rolls out this cluster", hint=hint) from None
            yield
        finally:
            os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises CliError for a file that cannot be written, as on a full disk."""
    try:
        yield
    except OSError as failure:
        hint = "Free space, or correct the permissions of its directory."
        raise CliError(f"cannot write {path}: {failure.strerror}", hint=hint) from None


class RolloutRun:
    """One run of a rollout, until it has ended or there is a doubt."""

    def __init__(
        self,
        rollout: Rollout,
        file: StateFile,
        urls: Collection[str],
        *,
        wait_s: float,
        command_timeout_s: float,
        ignored: Collection[str] = (),
        allow_unavailable: bool = False,
        by_hand: bool = False,
        tell: Tell,
    ) -> None:
        """`urls`: admin APIs of the cluster. `wait_s`: for the nodes of a step, until they and all replicas
        are back. `ignored`: rules of cluster health. `allow_unavailable`: stop nodes even if something is
        not served without them. `by_hand`: an operator has done what the commands had left to do at the step
        that has begun."""
        self.rollout = rollout
        self._file, self._urls = file, set(urls)
        self._wait_s, self._command_timeout_s = wait_s, command_timeout_s
        self._ignored, self._allow_unavailable = ignored, allow_unavailable
        self._by_hand = by_hand
        self._tell = tell

    def steps(self) -> Iterator[Step]:
        """Carry out the steps; yields each when it has ended. Raises CliError at the first doubt, and if a
        command fails."""
        self._file.check_command()
        if all(step.has_ended for step in self.rollout.steps):
            self._require_whole(())  # all run the version, and may have just started
        while step := self.rollout.next_step(observation_of(self._ask()).leader):
            began = time.monotonic()
            self._restart(step)
            self._await(step, partial(self._not_whole, step, newest_index(self._ask())))
            step.seconds = round(time.monotonic() - began, 1)
            self._file.save(self.rollout)
            yield step
        self._file.remove()

    def doubts(self) -> list[Doubt]:
        """Why the rollout would not continue now. Nothing is changed."""
        answers = _with_all_unhealthy(self._ask())
        begun = self.rollout.begun()
        absent = [node for step in begun for node in step.nodes]
        found = cluster_doubts(answers, absent, self._ignored)
        steps = begun or [step for step in self.rollout.steps if not step.has_ended]
        if found or self._allow_unavailable or not steps:
            return found
        partitions = self._request(steps[0], "GET", "/v1/partitions")["partitions"]
        return [one for step in steps for one in stop_doubts(step, nodes_of(answers), partitions)]

    def _restart(self, step: Step) -> None:
        has_begun = step.has_begun
        if has_begun and self._by_hand:
            self._await(step, partial(self._not_back, step))
            return
        answers = self._ask()
        nodes = nodes_of(answers)
        is_back = has_begun and not not_back(step, nodes, answers, self.rollout.version)
        if is_back and step.commands == len(self.rollout.commands):
            return
        answers = self._require_whole(step.nodes if has_begun else ())
        nodes = nodes_of(answers)
        _require(member_doubts(step, nodes))
        if not self._allow_unavailable:
            partitions = self._request(step, "GET", "/v1/partitions")["partitions"]
            _require(stop_doubts(step, nodes, partitions))
        if not has_begun:
            step.before = {one: (nodes[one].started, nodes[one].epoch) for one in step.nodes}
        for node in restarted_wrongly(step, nodes, self.rollout.version):  # it must restart again
            step.before = {**(step.before or {}), node.id: (node.started, node.epoch)}
            step.commands = 0
        if step.commands == len(self.rollout.commands):
            step.commands = 0  # they succeeded, and the nodes did not come back
        self._file.save(self.rollout)
        running = [nodes[one] for one in step.nodes if one in nodes and one in answers.documents]
        if not is_back:  # else the commands that are left may restart nothing, and it would lead nothing
            self._drain(step, [node for node in running if node.is_broker])
        self._run_commands(step)
        self._await(step, partial(self._not_back, step))

    def _not_whole(self, step: Step, index: int, answers: Answers) -> list[Doubt]:
        """Why the step has not ended, though its nodes are back. `index`: what they must have applied."""
        return cluster_doubts(answers, (), self._ignored) or behind_doubts(step, answers, index)

    def _not_back(self, step: Step, answers: Answers) -> list[Doubt]:
        nodes = nodes_of(answers)
        _require(wrong_versions(step, nodes, self.rollout.version))
        return not_back(step, nodes, answers, self.rollout.version)

    def _drain(self, step: Step, brokers: Collection[Node]) -> None:
        """Hand over the leaderships of these brokers. They get none until they restart."""
        for node in brokers:
            self._tell(f"{step.name}: broker {node.id} hands over its leaderships")
            leads = self._hand_over(step, node)
            if leads and not self._allow_unavailable:
                what = (
                    f"broker {node.id} still leads {counted(leads, 'partition')} whose other replicas have "
                    "not caught up"
                )
                how = (
                    "Wait until `tierlog partition list --under-replicated` is empty, or accept that they "
                    "are not served: --allow-unavailable. It leads no others until it restarts."
                )
                _require([Doubt(what, how)])

    def _hand_over(self, step: Step, broker: Node) -> int:
        """The number of leaderships that it keeps because no other replica has caught up. Each request elects
        others where one has."""
        leads = 0
        for number in range(CHECKS):
            time.sleep(POLL_INTERVAL_S if number else 0)
            leads = int(self._request(step, "POST", f"/v1/brokers/{broker.id}/stop")["leads"])
            if not leads or self._allow_unavailable:
                break
        return leads

    def _run_commands(self, step: Step) -> None:
        while step.commands < len(self.rollout.commands):
            answers = self._ask()
            if is_untouched(step, nodes_of(answers), answers):
                self._require_whole(step.nodes)  # another broker may have failed since the last check
            command = self.rollout.command(step.commands, step)
            self._tell(f"{step.name}: {command}")
            self._run_command(step, command)
            step.commands += 1
            self._file.save(self.rollout)

    def _run_command(self, step: Step, command: str) -> None:
        """Raises CliError if it fails."""
        with self._file.open_log() as log:
            log.write(f"==== {step.name}: {command}\n".encode())
            log.flush()
            begin = log.seek(0, os.SEEK_END)
            code = run_command(command, log, self._command_timeout_s, self._file.command)
            log.seek(begin)
            output = log.read().decode(errors="replace").splitlines()[-OUTPUT_LINES:]
        if code == 0:
            return
        ended = "took too long" if code is None else f"ended with exit code {code}"
        what = f"the command for {step.name} {ended}: {command}"
        text = "".join(f"\n  {line}" for line in output)
        brokers = " and ".join(str(node) for node in step.nodes)
        hint = (
            f"Correct the command, or what it says. Node {brokers} leads nothing until it restarts. If "
            "you do by hand what is left to do there, add --by-hand."
        )
        raise CliError(what + text, hint=hint)

    def _await(self, step: Step, doubts: Callable[[Answers], list[Doubt]]) -> None:
        """Wait until there are no doubts. Raises CliError after `--wait`."""
        deadline, reported = time.monotonic() + self._wait_s, ""
        while found := doubts(self._ask()):
            if time.monotonic() > deadline:
                waited = Doubt(f"{step.name} was not back after {self._wait_s:g} s", "")
                raise as_error([waited, *found])
            if found[0].what != reported:
                reported = found[0].what
                self._tell(f"{step.name}: waiting, {reported}")
            time.sleep(POLL_INTERVAL_S)

    def _require_whole(self, absent: Collection[int]) -> Answers:
        """The responses of all nodes. Raises CliError if the cluster is not whole, apart from `absent`."""
        for number in range(CHECKS):
            time.sleep(POLL_INTERVAL_S if number else 0)
            answers = self._ask()
            if absent:
                answers = _with_all_unhealthy(answers)
            if not (doubts := cluster_doubts(answers, absent, self._ignored)):
                return answers
        raise as_error(doubts)

    def _ask(self) -> Answers:
        answers = ask(sorted(self._urls), HEALTH_PATHS)
        self._urls.update(answers.urls.values())
        return answers

    def _request(self, step: Step, method: str, path: str) -> Any:
        """The response of the node with the newest metadata, if possible none of the step. Raises
        CliError."""
        answers = self._ask()
        failure = CliError("no node responds", hint="Start the nodes, and run the same command again.")
        for node in sorted(newest_first(observation_of(answers)), key=lambda node: node in step.nodes):
            api = AdminApi(answers.urls[node], timeout_s=REQUEST_TIMEOUT_S)
            try:
                return api.get(path) if method == "GET" else api.post(path, {})
            except CliError as failed:
                failure = failed
        raise failure


def _with_all_unhealthy(answers: Answers) -> Answers:
    """The responses with all unhealthy partitions: a broker that is down may explain more than those that are
    usually requested."""
    documents = dict(answers.documents)
    for node, found in answers.of(UNHEALTHY_PARTITIONS).items():
        if found.get("total", 0) > len(found["partitions"]):
            api = AdminApi(answers.urls[node], timeout_s=REQUEST_TIMEOUT_S)
            with suppress(CliError):  # what is missing stays a doubt
                documents[node] = {**documents[node], UNHEALTHY_PARTITIONS: api.get(UNHEALTHY_PARTITIONS)}
    return replace(answers, documents=documents)


def _require(doubts: Collection[Doubt]) -> None:
    if doubts:
        raise as_error([*doubts])


def run_command(command: str, output: Any, timeout_s: float, record: Path) -> int | None:
    """Exit code of a shell command; None if it took too long and was ended, with its children. `record`: the
    file for its process id while it runs."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        record.write_text(_process(process.pid))
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:  # also after Ctrl-C, which does not reach another session
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                if _has_ended(process, END_TIMEOUT_S):
                    break
        record.unlink(missing_ok=True)


def _process(process_id: int) -> str:
    """The process, by its id and when it started, since ids are used again. Without /proc by its id; empty if
    it does not run."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else f"{process_id} {fields[19]}"
    except FileNotFoundError:
        return str(process_id) if not Path("/proc/self").exists() else ""


def _has_ended(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Whether the process and its children end in time: the shell may end before a command of it."""
    deadline = time.monotonic() + timeout_s
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(END_POLL_S)
        return False
    return True
