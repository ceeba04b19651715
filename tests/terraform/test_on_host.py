"""terraform/aws/bin/on-host and replace-host: what they ask of AWS, which is a script here that notes it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from terraform_cli import ROOT
from waiting import until

AWS = """\
#!/bin/sh
# `aws` of a test: notes its arguments in $NOTES, and runs the commands that Systems Manager would run.
set -eu
printf '%s|' "$@" >> "$NOTES/calls"
echo >> "$NOTES/calls"
action=$2
query=
while [ $# -gt 0 ]; do
  case $1 in
    --query) query=$2 ;;
    --parameters) printf '%s' "$2" > "$NOTES/parameters" ;;
  esac
  shift
done
[ "$action" != "$BROKEN" ] || { echo ExpiredToken >&2; exit 254; }
case $action in
  describe-instances) printf '%s\\n' "$INSTANCES" ;;
  send-command) echo 4711 ;;
  get-command-invocation)
    [ -e "$NOTES/asked" ] || { touch "$NOTES/asked"; echo InvocationDoesNotExist >&2; exit 254; }
    case $query in
      Status) echo "$STATUS" ;;
      StandardOutputContent) echo said ;;
      StandardErrorContent) echo warned ;;
    esac ;;
esac
"""


class Host:
    def __init__(self, directory: Path) -> None:
        self.notes = directory
        (directory / "aws").write_text(AWS)
        (directory / "aws").chmod(0o755)

    def run(
        self,
        name: str,
        *words: str,
        instances: str = "i-0ab",
        status: str = "Success",
        broken: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """`broken`: a request that AWS refuses."""
        environment = self.environment(instances, status, broken)
        command = [ROOT / "terraform/aws/bin" / name, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def environment(self, instances: str, status: str, broken: str = "") -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.notes}:{os.environ['PATH']}",
            "NOTES": str(self.notes),
            "INSTANCES": instances,
            "STATUS": status,
            "BROKEN": broken,
            "POLL_SECONDS": "0",
        }

    def actions(self) -> list[str]:
        calls = (self.notes / "calls").read_text().splitlines()
        return [call.split("|")[1] for call in calls]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_command_reaches_the_host_as_it_is_and_its_output_comes_back(host: Host) -> None:
    command = """sh -c "systemctl restart 'tierlog@*' && echo \\$HOME" """
    ended = host.run("on-host", "small", "broker-2.small.internal", command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "said\n", "warned\n")
    assert json.loads((host.notes / "parameters").read_text()) == {"commands": [command]}
    calls = (host.notes / "calls").read_text()
    assert "Name=tag:tierlog:cluster,Values=small|Name=tag:tierlog:host,Values=broker-2|" in calls


@pytest.mark.parametrize("status", ["Failed", "TimedOut", "Cancelled", "Undeliverable"])
def test_a_command_that_does_not_succeed_fails(status: str, host: Host) -> None:
    ended = host.run("on-host", "small", "broker-2", "false", status=status)
    assert ended.returncode == 1 and f"{status} on broker-2 (i-0ab, command 4711)" in ended.stderr


def test_a_command_whose_state_cannot_be_read_is_not_waited_for_without_end(host: Host) -> None:
    ended = host.run("on-host", "small", "broker-2", "true", broken="get-command-invocation")
    assert ended.returncode == 1
    assert "ExpiredToken" in ended.stderr and "may still run (i-0ab, command 4711)" in ended.stderr


def test_a_signal_cancels_the_command_and_a_host_that_is_away_never_runs_it(host: Host) -> None:
    """Otherwise it would restart nodes after a rollout has stopped."""
    words = [ROOT / "terraform/aws/bin/on-host", "small", "broker-2", "true"]
    running = subprocess.Popen(words, env=host.environment("i-0ab", "InProgress"), start_new_session=True)
    until((host.notes / "asked").exists, "it waits for the command")
    os.killpg(running.pid, signal.SIGTERM)
    assert running.wait(30) == 143
    calls = (host.notes / "calls").read_text()
    assert "ssm|cancel-command|--command-id|4711|" in calls
    assert "|--timeout-seconds|120|" in calls


@pytest.mark.parametrize(
    ("instances", "reason"), [("", "no running instance"), ("i-0ab\ti-0cd", "more than one")]
)
def test_a_host_without_one_instance_is_refused(instances: str, reason: str, host: Host) -> None:
    ended = host.run("on-host", "small", "broker-2", "true", instances=instances)
    assert ended.returncode == 1 and reason in ended.stderr
    assert host.actions() == ["describe-instances"]


def test_a_host_is_stopped_before_its_instance_ends(host: Host) -> None:
    ended = host.run("replace-host", "small", "broker-2.small.internal")
    assert ended.returncode == 0 and "ended i-0ab of broker-2" in ended.stdout
    actions = host.actions()
    assert actions.index("send-command") < actions.index("terminate-instance-in-auto-scaling-group")
    assert "systemctl stop 'tierlog@*'" in (host.notes / "parameters").read_text()
    assert "--no-should-decrement-desired-capacity" in (host.notes / "calls").read_text()


def test_an_instance_stays_if_its_nodes_do_not_stop(host: Host) -> None:
    ended = host.run("replace-host", "small", "broker-2", status="Failed")
    assert ended.returncode == 1 and "--instance-id i-0ab, and continue" in ended.stderr
    assert "terminate-instance-in-auto-scaling-group" not in host.actions()


def test_an_instance_that_ends_late_is_no_failure(host: Host) -> None:
    """A rollout runs a command that failed again, which would end the new instance."""
    ended = host.run("replace-host", "small", "broker-2", broken="wait")
    assert ended.returncode == 0 and "i-0ab of broker-2 ends" in ended.stderr
    assert "terminate-instance-in-auto-scaling-group" in host.actions()


def test_a_host_that_has_gone_already_is_no_failure(host: Host) -> None:
    ended = host.run("replace-host", "small", "broker-2", instances="")
    assert ended.returncode == 0 and "starts one" in ended.stderr
