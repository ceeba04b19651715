"""`tierlog cluster config` against a broker: values, files, differences and changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import Ended, call, json_output

from tierlog.cli.errors import ExitCode
from tierlog.testing import TierlogBroker

RATE = "log.scrub.max.bytes.per.second"


@pytest.fixture
def at(tierlog_session_broker: TierlogBroker) -> Iterator[tuple[str, ...]]:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    yield at
    for broker in ("", "1"):
        call("broker", "alter", *filter(None, [broker]), "--unset", RATE, *at)


def config(*words: str | Path, code: int = 0) -> Ended:
    ended = call("cluster", "config", *map(str, words))
    assert ended.code == code, ended.stdout + ended.stderr
    return ended


def test_values_have_their_source(at: tuple[str, ...]) -> None:
    config("set", f"{RATE}=2000000", *at)
    config("set", f"{RATE}=3000000", "--broker", "1", "--yes", *at)  # as import takes it
    [[value]] = json_output("cluster", "config", "get", RATE, *at)
    assert (value["value"], value["source"], value["brokers"]) == ("3000000", "this broker", [1])
    assert RATE in config("get", *at).stdout
    ended = config("get", "log.scrub.max.bytes", *at, code=ExitCode.NOT_FOUND)
    assert f"did you mean '{RATE}'" in ended.stderr


@pytest.mark.parametrize("suffix", ["yaml", "properties"])
def test_an_exported_file_restores_the_settings(suffix: str, at: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / f"settings.{suffix}"
    config("set", f"{RATE}=2000000", *at)
    config("set", f"{RATE}=3000000", "--broker", "1", *at)
    config("export", "--output", file, *at)
    assert "no difference" in config("diff", file, *at).stderr
    config("set", f"{RATE}=5000000", *at)
    call("broker", "alter", "1", "--unset", RATE, *at)
    [rows] = json_output("cluster", "config", "diff", file, *at, code=ExitCode.FAILED)
    assert [(row["broker"], row["before"], row["after"]) for row in rows] == [
        (None, "5000000", "2000000"),
        (1, None, "3000000"),
    ]
    preview = config("import", file, "--dry-run", *at)
    assert "5000000" in preview.stdout and "target" not in preview.stderr
    refused = config("import", file, *at, code=1)
    assert "Apply 2 changes" in refused.stderr and "--yes" in refused.stderr
    config("diff", file, *at, code=1)
    applied = config("import", file, "--yes", *at)
    assert applied.stderr.startswith(f"target: {at[1]}\n")
    config("diff", file, *at)
    assert "nothing to change" in config("import", file, "--yes", *at).stderr


def test_settings_that_a_file_does_not_name_stay_unless_refused(at: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    config("export", "--output", file, *at)
    config("set", f"{RATE}=2000000", *at)
    assert "nothing to change" in config("import", file, "--yes", *at).stderr
    config("import", file, "--yes", "--remove-others", *at)
    config("diff", file, *at)


def test_a_file_with_a_mistake_changes_nothing(at: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for part in ("brokers:\n  1:\n    num.partitions: 5\n", "brokers:\n  4711:\n    max.connections: 5\n"):
        file.write_text(f"cluster:\n  {RATE}: 2000000\n{part}")
        ended = call("cluster", "config", "import", str(file), "--yes", *at)
        assert ended.code in (ExitCode.USAGE, ExitCode.NOT_FOUND)
        assert json_output("cluster", "config", "get", RATE, *at)[0][0]["source"] == "default"


def test_a_broker_differs_not_from_itself(at: tuple[str, ...]) -> None:
    assert "no difference" in config("diff", "--brokers", "1,1", *at).stderr
