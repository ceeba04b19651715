"""Changes through the command line while two of three voters are gone: they say so, and end."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_inline import call
from cli_process import run

from tierlog.cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COMMANDS = {
    "CreateTopics": ("topic", "create", "new", "--partitions", "1"),
    "DeleteTopics": ("topic", "delete", "old", "--yes"),
}


NO_LEADER = "The metadata quorum has no leader: run `tierlog cluster health` to see what to do."


def consume_without_a_lease(*at: str) -> "subprocess.CompletedProcess[str]":
    """The first consumer that reads nothing: for some seconds the survivor holds the lease of its broker."""
    while (ended := run("consume", "old", "--from-beginning", *at)).returncode == 0:
        pass
    return ended


def test_changes_in_a_lost_majority_say_what_to_do_and_end(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3) as cluster:
        assert run("topic", "create", "old", "-p", "1", "-b", cluster.bootstrap).returncode == 0
        survivor, *others = cluster.nodes.values()
        for node in others:
            node.kill()
        at = ("--bootstrap", survivor.bootstrap)
        with ThreadPoolExecutor(len(COMMANDS) + 2) as pool:  # each of them waits for 30 s
            running = {api: pool.submit(run, *words, *at) for api, words in COMMANDS.items()}
            produces = pool.submit(run, "produce", "old", *at)
            consumes = pool.submit(consume_without_a_lease, *at)
        for api, ended in running.items():
            errors = ended.result().stderr
            assert ended.result().returncode != 0 and "Traceback" not in errors
            assert f"No response to {api}" in errors and "tierlog cluster health" in errors
        for refused in (produces.result(), consumes.result()):
            assert refused.returncode == 1 and NO_LEADER in refused.stderr
        for words in (("partition", "list", "--below-min"), ("broker", "list")):
            listed = call(*words, "--admin", survivor.admin_url)
            assert listed.code == 0 and "The metadata quorum has no leader: this is" in listed.stderr
