"""The catalogue of log events and the calls of loggers agree; lines have text, remedy and no secret."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from log_calls import LogCall, calls_in, log_calls

from tierlog.broker.log_events.catalogue import EVENTS, SECTIONS
from tierlog.cli.main import app
from tierlog.config.definitions import SettingType
from tierlog.config.node import NODE_SETTINGS
from tierlog.monitoring.alerts import ALERTS

ROOT = Path(__file__).parents[3]
CALLS = log_calls()
IN_EACH_LINE = {"timestamp", "level", "event", "message", "next", "exception"}
SECRET_SETTINGS = {
    name.replace(".", "_") for name, setting in NODE_SETTINGS.items() if setting.type is SettingType.PASSWORD
}
SECRET_WORDS = re.compile(
    r"password|secret|hmac|salt|private_key|credentials?$|jaas|authorization|^tokens?$|session_token"
)


def secrets_in(call: LogCall) -> list[str]:
    """Names in the values of the fields that are those of passwords, keys or tokens."""
    names = [
        part.attr if isinstance(part, ast.Attribute) else part.id
        for value in call.values
        for part in ast.walk(value)
        if isinstance(part, (ast.Attribute, ast.Name))
    ]
    return [name for name in names if name in SECRET_SETTINGS or SECRET_WORDS.search(name)]


def test_calls_name_events_by_literals() -> None:
    assert len(CALLS) > 150
    assert [call.place for call in CALLS if not call.names] == []


def test_every_logged_event_is_in_the_catalogue() -> None:
    assert [(call.place, name) for call in CALLS for name in call.names if name not in EVENTS] == []


def test_every_event_of_the_catalogue_is_logged() -> None:
    logged = {name for call in CALLS for name in call.names}
    assert [name for name in EVENTS if name not in logged] == []


def test_names_are_dotted_and_unique() -> None:
    assert [name for name in EVENTS if not re.fullmatch(r"[a-z][a-z_]*(\.[a-z][a-z_]*)+", name)] == []
    assert sum(map(len, SECTIONS.values())) == len(EVENTS)


def test_warnings_and_errors_have_a_remedy() -> None:
    bad = {name for call in CALLS if call.level not in ("debug", "info") for name in call.names}
    assert [name for name in bad if not EVENTS[name].remedy] == []


def test_fields_do_not_replace_those_of_each_line() -> None:
    assert [
        (call.place, set(call.fields) & IN_EACH_LINE) for call in CALLS if set(call.fields) & IN_EACH_LINE
    ] == []


def test_no_field_has_a_secret() -> None:
    assert [(call.place, secrets_in(call)) for call in CALLS if secrets_in(call)] == []


@pytest.mark.parametrize(
    "field",
    [
        "key=settings.controller_quorum_secret",
        "login=str(self.password)",
        "**login(user, token)",
        "by=f'{hmac}'",
    ],
)
def test_a_field_with_a_secret_is_found(field: str) -> None:
    [call] = calls_in(f"_log.info('node.serving', {field})", "here")
    assert secrets_in(call)


def test_remedies_name_commands_pages_and_settings_that_exist() -> None:
    commands = set(paths_of(typer.main.get_command(app), ("tierlog",)))
    for name, event in EVENTS.items():
        for words in re.findall(r"`(tierlog [^`]*)`", event.remedy):
            path = tuple(word for word in words.split() if not word.startswith("-"))
            assert path in commands, (name, words)
        for page in re.findall(r"docs/[\w/-]+\.md", event.remedy):
            assert (ROOT / page).is_file(), (name, page)


def test_doctor_names_events_that_exist() -> None:
    rules = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "broker/diagnosis").glob("*.py"))
    named = re.findall(r"event `([^`]*)`", rules)
    assert len(named) >= 5 and set(named) <= set(EVENTS)


def test_alerts_name_events_and_not_their_words() -> None:
    told = " ".join(one.description for group in ALERTS for one in group.alerts)
    quoted = set(re.findall(r"`([^`]*)`", told))
    assert len(quoted & set(EVENTS)) >= 3
    assert quoted & {event.says for event in EVENTS.values()} == set()  # those words may change


def paths_of(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    children = getattr(command, "commands", None) or {}
    return [path] + [found for name, child in children.items() for found in paths_of(child, (*path, name))]


LIBRARIES = """
import logging, warnings
from tierlog.broker.log_output import configure_logging
configure_logging("{format}")
logging.getLogger("asyncio").error("task %s", "7", exc_info=ValueError("broken"))
logging.getLogger("aiohttp").info("not shown")
logging.getLogger("other").log(35, "between %s", "levels")
logging.getLogger("wrong").error("%d", "no number")
warnings.warn("old")
"""


def lines_of(line_format: str) -> list[str]:
    code = LIBRARIES.format(format=line_format)
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True)
    return ended.stderr.splitlines()


def test_messages_of_libraries_are_json_too() -> None:
    left, between, *wrong, old = lines_of("json")
    assert "Logging error" in wrong[0]  # as the standard library reports its own faults
    left, between, old = map(json.loads, (left, between, old))
    assert (between["level"], between["text"]) == ("warning", "between levels")
    assert list(left)[:4] == ["timestamp", "level", "event", "message"]
    assert (left["level"], left["event"], left["library"]) == ("error", "library.message", "asyncio")
    assert left["text"] == "task 7" and "ValueError: broken" in left["exception"]
    assert (old["level"], old["library"]) == ("warning", "py.warnings") and "old" in old["text"]


def test_text_has_one_line_for_each_event_too() -> None:
    left, _, *_, old = lines_of("text")
    assert " level='error' event='library.message' " in left and "broken" in left
    assert " level='warning' event='library.message' " in old
