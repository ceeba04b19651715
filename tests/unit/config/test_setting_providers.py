"""References in settings to values that are stored elsewhere (KIP-297)."""

from pathlib import Path

import pytest

from tierlog.cli.errors import CliError
from tierlog.cli.node import read_settings
from tierlog.config.definitions import InvalidSetting
from tierlog.config.providers import SECRET_BYTES_MAX, resolved


def test_values_come_from_environment_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("# comment\n\n quorum = a=b c \n", encoding="utf-8")
    (tmp_path / "password").write_text("p:4}\n", encoding="utf-8")
    texts = {
        "a": "${env:SECRET}",
        "b": f"${{file:{tmp_path}/secrets.properties:quorum}}",
        "c": f"before ${{directory:{tmp_path}:password}} after ${{env:SECRET}}",
    }
    assert resolved(texts, {"SECRET": "${env:SECRET}"}) == {
        "a": "${env:SECRET}",  # a value is not a reference again
        "b": "a=b c",
        "c": "before p:4} after ${env:SECRET}",
    }


def test_other_texts_stay() -> None:
    texts = {"a": "RULE:^CN=(.*?)$/$1/L,DEFAULT", "b": "${vault:x:y}", "c": "${", "d": ""}
    assert resolved(texts, {}) == texts


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("${env:ABSENT}", "the environment has no variable ABSENT"),
        ("${env:A:b}", "write ${env:VARIABLE}"),
        ("${file:/absent:key}", "No such file"),
        ("${file:FILE}", "write ${file:/path/of.properties:key}"),
        ("${file:FILE:other}", "the file has no line other=..."),
        ("${file:BAD:key}", "line 2 is not key=value"),
        ("${file:BINARY:key}", "the file is not UTF-8"),
        ("${file:LARGE:key}", f"more than {SECRET_BYTES_MAX} bytes"),
        ("${directory:DIRECTORY}", "write ${directory:/path:file}"),
        ("${directory:DIRECTORY:../FILE}", "write ${directory:/path:file}"),
        ("${directory:DIRECTORY:absent}", "No such file"),
    ],
)
def test_a_missing_value_names_its_setting_and_reference_and_no_secret(
    tmp_path: Path, reference: str, says: str
) -> None:
    (tmp_path / "FILE").write_text("key=canary\n", encoding="utf-8")
    (tmp_path / "BAD").write_text("key=canary\ncanary\n", encoding="utf-8")
    (tmp_path / "BINARY").write_bytes(b"key=canary\xff")
    (tmp_path / "LARGE").write_text("key=canary" * SECRET_BYTES_MAX, encoding="utf-8")
    for name in ("FILE", "BAD", "BINARY", "LARGE"):
        reference = reference.replace(f":{name}", f":{tmp_path / name}")
    reference = reference.replace("DIRECTORY", str(tmp_path))
    with pytest.raises(InvalidSetting) as raised:
        resolved({"the.setting": reference}, {"A": "canary"})
    message = str(raised.value)
    assert message.startswith(f"the.setting: {reference} has no value: ")
    assert says in message
    assert "canary" not in message


def test_a_node_reads_its_secret_from_a_mounted_directory(tmp_path: Path) -> None:
    (tmp_path / "quorum-secret").write_text("swordfish\n", encoding="utf-8")
    file = tmp_path / "node.toml"
    file.write_text(
        f"'controller.quorum.secret' = '${{directory:{tmp_path}:quorum-secret}}'\n", encoding="utf-8"
    )
    assert read_settings(file=file, environment={}, options={}).controller_quorum_secret == "swordfish"
    with pytest.raises(CliError, match="the environment has no variable ABSENT"):
        read_settings(file=file, environment={}, options={"controller.quorum.secret": "${env:ABSENT}"})
