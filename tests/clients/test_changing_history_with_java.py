"""The Java client reads tiered topics again and again from their beginnings, while segments are uploaded,
dropped from local disk, merged, compacted and deleted in S3.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from changing_history import PASSES, TOPICS, ChangingHistory, OutOfRange, Record, running_history
from java_process import java_command

from tierlog.testing import TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

PROGRAM = Path(__file__).parent / "java" / "Reread.java"


class JavaReader:
    """One process for all passes, whose output ends if it fails."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def open(self, bootstrap: str, topic: str) -> "JavaReader":
        self._topic = topic
        return self

    def beginning(self) -> int:
        self._send(f"open {self._topic}")
        return int(self._line().removeprefix("beginning "))

    def read_to(self, end: int) -> Sequence[Record]:
        self._send(f"read {end}")
        found: list[Record] = []
        while (line := self._line()) != "done":
            if line.startswith("out of range "):
                raise OutOfRange(int(line.removeprefix("out of range ")))
            found.append(_parsed(line))
        return found

    def close(self) -> None:
        """The process closes its consumer when it opens the next one."""

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Java client has failed, see its output"
        return line.removesuffix("\n")


def _parsed(line: str) -> Record:
    offset, timestamp, key, value, *headers = line.split("\t")
    pairs = (header.split("=") for header in headers)
    found = tuple((name, _bytes(content)) for name, content in pairs)
    return Record(int(offset), int(timestamp), _bytes(key), _bytes(value), found)


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


@pytest.fixture
def history(tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path) -> Iterator[ChangingHistory]:
    with running_history(tierlog_broker_factory, tmp_path) as history:
        yield history


@pytest.fixture
def java(java_classpath: str, history: ChangingHistory) -> Iterator[JavaReader]:
    command = java_command(java_classpath, str(PROGRAM), history.broker.bootstrap)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield JavaReader(process)


def test_java_reads_what_was_produced_while_history_changes(
    history: ChangingHistory, java: JavaReader
) -> None:
    passes = 0
    while passes < PASSES or not history.has_changed():
        history.read_all(java.open)
        passes += 1
    history.stop()
    history.read_all(java.open)
    assert history.passes == len(TOPICS) * (passes + 1)
