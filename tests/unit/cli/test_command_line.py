"""The command line as a process: exit codes and error messages."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_inline import call, commands

from tierlog.cli import profiles


def tierlog(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierlog.cli.main", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def closed_port() -> int:
    """A port without a listener: bound, and closed again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_version() -> None:
    assert tierlog("--version").stdout.startswith("tierlog ")


def test_object_store_of_the_environment_replaces_the_default_of_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default, the broker would start and serve."""
    dev = ("dev", "--port", "0", "--data-dir", str(tmp_path))
    monkeypatch.setenv("TIERLOG_OBJECT_STORE_URL", "ftp://host/of/the/environment")
    refused = tierlog(*dev)
    assert refused.returncode == 2 and "ftp://host/of/the/environment" in refused.stderr
    refused = tierlog(*dev, "--object-store", "ftp://host/of/the/option")
    assert refused.returncode == 2 and "ftp://host/of/the/option" in refused.stderr


def test_commands_of_tests_do_not_see_the_profiles_of_the_developer() -> None:
    assert not profiles.file().is_relative_to(Path.home() / ".config")
    assert not profiles.load().by_name


def test_every_command_has_json_output() -> None:
    assert {"dev", "consume", "topic create", "tier explain", "cluster info"} <= set(commands())
    mute = {
        words
        for words, command in commands().items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert mute == set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [("tierlog top", "topic"), ("tierlog topic al", "alter"), ("tierlog consume --from", "--from-beginning")],
)
def test_shell_completion(words: str, expected: str) -> None:
    requested = {
        "_TIERLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = Path(sys.executable).with_name("tierlog")
    ended = subprocess.run(
        [command], env={**os.environ, **requested}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.split() == [expected]


def test_lists_of_commands_have_one_line_for_each() -> None:
    """The first paragraph of a help text is its line in the list."""
    long = {words: command.help for words, command in commands().items() if "\n" in first(command.help)}
    assert long == {}


def first(text: str) -> str:
    return text.strip().partition("\n\n")[0]


def test_help_names_the_first_steps() -> None:
    assert "To get started: `tierlog dev`, then" in call("--help").stdout


def test_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tierlog", "--version"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        == tierlog("--version").stdout
    )


@pytest.mark.parametrize(
    ("words", "example"),
    [
        ("produce t -H bad", "--header source=web"),
        ("topic create t -c bad", "--config retention.ms=-1"),
        ("broker alter 1 -c bad", "--config max.connections=5000"),
        ("dev --set bad", "--set log.retention.hours=24"),
        ("cluster up --set bad", "--set log.retention.hours=24"),
        ("quota set bad -c app", "producer_byte_rate=1048576"),
    ],
)
def test_a_pair_without_a_value_has_an_example_of_its_command(
    words: str, example: str, closed_port: int
) -> None:
    at = () if words.startswith(("dev", "cluster")) else ("--bootstrap", f"127.0.0.1:{closed_port}")
    ended = call(*words.split(), *at)
    assert ended.code == 2 and "expected KEY=VALUE" in ended.stderr
    assert f"For example: {example}\n" in ended.stderr


def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--port", "0", "--admin-port", port, "--data-dir", str(tmp_path))
        ended = tierlog("dev", *words)
    assert ended.returncode == 1
    assert f"tierlog: cannot start: port {port} of 127.0.0.1 is in use\n" in ended.stderr


@pytest.mark.parametrize("is_kept", [False, True])
def test_dev_says_what_becomes_of_its_data(is_kept: bool, tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path)] if is_kept else []
    command = [sys.executable, "-m", "tierlog.cli.main", "dev", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        first, second = dev.stdout.readline(), dev.stdout.readline()
        dev.terminate()
        errors = dev.communicate()[1]
    assert first.startswith("tierlog serves Kafka clients at ")
    path = second.removeprefix("Spark reads the history of tiered topics from the path ").strip()
    assert path == f"file://{tmp_path}/objects" if is_kept else path.endswith("/objects")
    end = f"stopped; the data stays in {tmp_path}\n" if is_kept else "stopped; the data is deleted\n"
    assert dev.returncode == 0 and errors.endswith(end)


def test_unknown_command_is_a_usage_error() -> None:
    assert tierlog("frobnicate").returncode == 2


@pytest.mark.parametrize(
    "words",
    [("topic", "list"), ("topic", "create", "t"), ("consume", "t"), ("cluster", "info"), ("produce", "t")],
)
def test_unreachable_broker_has_its_exit_code_and_a_start_hint(
    words: tuple[str, ...], closed_port: int
) -> None:
    ended = tierlog(*words, "--bootstrap", f"127.0.0.1:{closed_port}")
    assert ended.returncode == 3
    assert f"127.0.0.1:{closed_port}" in ended.stderr
    assert "tierlog dev" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_unreachable_admin_api_has_its_exit_code(closed_port: int) -> None:
    ended = tierlog("tier", "status", "--admin", f"http://127.0.0.1:{closed_port}")
    assert ended.returncode == 3


def test_invalid_address_is_a_usage_error() -> None:
    ended = tierlog("topic", "list", "--bootstrap", "nowhere")
    assert ended.returncode == 2
    assert "HOST:PORT" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", ""),
        ("topic", "describe", ""),
        ("topic", "delete", "orders", "", "--yes"),
        ("partition", "list", ""),
        ("produce", ""),
    ],
)
def test_empty_topic_name_is_a_usage_error(words: tuple[str, ...]) -> None:
    ended = call(*words)
    assert ended.code == 2
    assert ended.stderr.startswith("tierlog: a topic needs a name\nFor example: tierlog topic create orders")


@pytest.mark.parametrize("words", [("cluster", "health"), ("broker", "list"), ("tier", "status")])
@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ("foo", "'foo' is not the URL"),
        ("http://127.0.0.1:1,foo", "'foo' is not the URL"),
        ("", "no admin API"),
    ],
)
def test_invalid_admin_url_is_a_usage_error_with_an_example(
    words: tuple[str, ...], admin: str, problem: str
) -> None:
    ended = call(*words, "--admin", admin)
    assert ended.code == 2
    assert problem in ended.stderr and "http://127.0.0.1:9644" in ended.stderr


def test_unknown_setting_is_a_usage_error_with_the_nearest_name() -> None:
    ended = tierlog("dev", "--port", "0", "--set", "log.segment.byte=5")
    assert ended.returncode == 2
    assert "log.segment.bytes" in ended.stderr


def test_invalid_settings_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("= 1", encoding="utf-8")
    ended = tierlog("server", "--config", str(file))
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert "node.toml" in ended.stderr


def test_setting_without_value_is_a_usage_error() -> None:
    assert tierlog("server", "--set", "node.id").returncode == 2


@pytest.mark.parametrize("option", ["--throttle", "--max-moves", "--seconds"])
def test_balance_by_number_does_not_pretend_that_it_is_throttled(option: str) -> None:
    ended = call("partition", "balance", option, "5", "--admin", "http://127.0.0.1:1")
    assert ended.code == 2 and "--execute" in ended.stderr
