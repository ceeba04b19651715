"""Files of dynamic settings: both forms are read back, and differences are those of the values."""

from pathlib import Path

import pytest

from tierlog.cli.dynamic_settings import (
    FORMATS,
    Change,
    Document,
    changes_to,
    check,
    read_document,
    text_of,
)
from tierlog.cli.errors import CliError

DOCUMENT: Document = {
    None: {"log.retention.ms": "86400000", "metric.reporters": "a, b"},
    2: {"max.connections": "5000"},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_read_back(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"settings.{kind}"
    file.write_text(text_of(DOCUMENT, kind))
    assert read_document(file, None) == DOCUMENT


@pytest.mark.parametrize("kind", FORMATS)
def test_a_cluster_without_settings_is_read_back(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(text_of({None: {}, 1: {}}, kind))
    assert read_document(file, kind) == {None: {}}


def test_changes_are_differences_of_values() -> None:
    current: Document = {
        None: {"log.retention.ms": "1", "metric.reporters": "a,b", "max.connections": "7"},
        1: {"max.connections": "9"},
    }
    wanted = [
        Change(None, "log.retention.ms", "1", "86400000"),
        Change(2, "max.connections", None, "5000"),
    ]
    assert changes_to(DOCUMENT, current, complete=False) == wanted
    removed = [Change(None, "max.connections", "7", None), Change(1, "max.connections", "9", None)]
    assert sorted(changes_to(DOCUMENT, current, complete=True), key=str) == sorted(wanted + removed, key=str)
    assert changes_to(DOCUMENT, DOCUMENT, complete=True) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log.retention.mss", "5", "did you mean 'log.retention.ms'"),
        ("log.retention.ms", "soon", "is not an integer"),
        ("log.retention.hours", "5", "set log.retention.ms instead"),
        ("num.partitions", "5", "read by a node at startup"),
        ("ssl.keystore.password", "x", "at startup"),
    ],
)
def test_changes_that_no_broker_accepts_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(CliError, match=message):
        check([Change(None, name, None, value)])
    check([Change(None, name, value, None)])


@pytest.mark.parametrize(
    "text",
    [
        "cluster: 5\n",
        "clusters:\n  a: b\n",
        "brokers:\n  one:\n    a: b\n",
        "cluster:\n  a:\n    b: c\n",
        "- a\n",
        "cluster: " + "[" * 5_000,
        "brokers:\n  01:\n    a: b\n",
        f"brokers:\n  {2**31}:\n    a: b\n",
    ],
)
def test_a_file_of_another_form_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(CliError) as refused:
        read_document(file, None)
    assert str(file) in refused.value.message and "export" in refused.value.hint


def test_the_id_of_a_broker_in_properties_has_bounds(tmp_path: Path) -> None:
    file = tmp_path / "settings.properties"
    file.write_text(f"broker.{'9' * 5_000}.max.connections=1\n")
    with pytest.raises(CliError, match="is not the id of a broker"):
        read_document(file, None)
