"""`tierlog quorum recover` as a process: its confirmation and its errors."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage_tools.offline import LOCK_FILE, locked
from tierlog.metadata.quorum.recovery import TERM_GAP
from tierlog.metadata.quorum.storage import LoadedMetadata, MetadataStorage
from tierlog.metadata.raft.membership import Configuration, Member, encode_configuration
from tierlog.metadata.raft.messages import CONFIGURATION, Entry, HardState

THREE = Configuration({1: Member(), 2: Member("http://two"), 3: Member()})


def storage(data: Path) -> MetadataStorage:
    return MetadataStorage(
        OsFiles(),
        data / "__cluster_metadata",
        cluster_id="orders-cluster",
        node_id=2,
        new_directory_id=UUID(int=1),
    )


def loaded(data: Path) -> tuple[UUID, LoadedMetadata]:
    with closing(storage(data)) as there:
        return there.directory_id, there.open()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data directory of node 2, one of three voters, in term 4."""
    (tmp_path / LOCK_FILE).touch()
    with closing(storage(tmp_path)) as there:
        there.open()
        entry = Entry(4, 1, encode_configuration(THREE), CONFIGURATION)
        there.save(None, (entry,), HardState(4, 1, 0))
    return tmp_path


def recover(*words: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tierlog.cli.main", "quorum", "recover", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_recover_names_what_may_be_lost_and_asks_for_the_cluster_id(data: Path) -> None:
    before = loaded(data)
    refused = recover(data, stdin="yes\n")
    assert refused.returncode == 1
    assert loaded(data) == before
    reported = " ".join(refused.stderr.split())
    assert "Node 2 of cluster orders-cluster" in reported
    assert "ends at index 1 of term 4; entries up to 0 are known to be committed" in reported
    assert "The voters are 1, 2, 3." in reported
    assert "a replica that lacks acknowledged records may become leader" in reported

    assert recover(data, stdin="orders-cluster\n").returncode == 0
    _, after = loaded(data)
    assert after.hard_state.term == 4 + TERM_GAP
    configuration = after.snapshot.configuration
    assert configuration is not None and configuration.voters.keys() == {2}
    assert configuration.voters[2].url == "http://two"


def test_recover_with_yes_does_not_ask_and_prints_json(data: Path) -> None:
    reported = json.loads(recover(data, "--yes", "--json").stdout)
    assert (reported["node_id"], reported["voters"], reported["last_index"]) == (2, [1, 2, 3], 1)
    again = recover(data, "--yes")
    assert again.returncode == 1
    assert "the node is already the only voter" in again.stderr


def test_recover_refuses_a_running_node(data: Path) -> None:
    before = loaded(data)
    with locked(data):
        refused = recover(data, "--yes")
    assert refused.returncode == 1
    assert "a broker runs on" in refused.stderr
    assert loaded(data) == before


def test_recover_refuses_another_directory(tmp_path: Path) -> None:
    assert recover(tmp_path, "--yes").returncode == 2
    assert list(tmp_path.iterdir()) == []
