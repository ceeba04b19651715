"""--output of all commands: JSON, YAML and a wide table have the same values."""

import json
from pathlib import Path

import pytest
import yaml
from cli_inline import call, commands

from tierlog.cli import output

OWN_OUTPUT = {"cluster config export", "debug bundle", "spark package", "token create"}
"""Their --output is a file."""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    login = ("--user", "ada", "--password", "env:PASSWORD")
    assert call("profile", "create", "prod", "-b", "127.0.0.1:1", *login).code == 0


def test_every_command_has_the_option() -> None:
    with_option = {
        words
        for words, command in commands().items()
        if any("--output" in parameter.opts for parameter in command.params)
    }
    assert set(commands()) - with_option == set()
    assert with_option >= OWN_OUTPUT


def test_json_and_yaml_have_the_same_values() -> None:
    expected = json.loads(call("profile", "list", "--json").stdout)
    assert json.loads(call("profile", "list", "--output", "json").stdout) == expected
    assert yaml.safe_load(call("profile", "list", "--output", "yaml").stdout) == expected
    assert "│ prod" in call("profile", "list", "--output", "table").stdout


def test_a_wide_table_has_all_columns_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    output.use_form(output.WIDE)
    try:
        output.print_rows({"a": "first"}, [{"a": "x" * 300, "more_of_it": 5}], title="t")
    finally:
        output.use_form(output.TABLE)
    shown = capsys.readouterr().out
    assert "x" * 300 in shown and "more of it" in shown


def test_yaml_obeys_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.use_form(output.YAML)
    try:
        output.print_json({"name": "a\x1b[31mb\u202e"})
    finally:
        output.use_form(output.TABLE)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert yaml.safe_load(shown) == {"name": "a\x1b[31mb\u202e"}


def test_the_form_of_one_command_is_not_that_of_the_next() -> None:
    call("profile", "list", "--output", "yaml")
    assert json.loads(call("profile", "list", "--json").stdout)[0]["name"] == "prod"


def test_another_form_is_refused() -> None:
    ended = call("profile", "list", "--output", "xml")
    assert ended.code == 2 and "table, json, yaml, wide" in ended.stderr
