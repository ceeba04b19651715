"""Reference pages drawn from the code: settings, metrics, commands, APIs, group states. A test compares them.

Run as `python -m tierlog.cli.reference [directory]`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tierlog.broker.gateway.catalogue import reference_page as metrics_page
from tierlog.broker.groups.core.states import reference_page
from tierlog.broker.handlers.table import SERVED
from tierlog.cli.errors import ExitCode
from tierlog.cli.state_diagrams import page as cluster_states
from tierlog.config.definitions import Setting
from tierlog.config.dynamic import DYNAMIC_SETTINGS
from tierlog.config.node import NODE_SETTINGS
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.protocol.api import BY_NAME

HEADER = "<!-- Written by `make docs` from the code: do not edit. -->\n"

EXIT_CODES = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the broker refused, or a comparison failed; the message says why",
    ExitCode.USAGE: "the words or values given make no sense",
    ExitCode.UNREACHABLE: "nobody answers at the address",
    ExitCode.NOT_FOUND: "the topic, partition or offset does not exist",
    ExitCode.DEGRADED: "`cluster health`: all is served, but less may fail than should",
    ExitCode.UNAVAILABLE: "`cluster health`: something that clients or operators ask is not served",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
}


def pages() -> dict[str, str]:
    """File name -> text of each generated page."""
    return {
        "settings.md": _settings(),
        "cli.md": _commands(),
        "protocol.md": _protocol(),
        "group-states.md": reference_page(),
        "cluster-states.md": f"{HEADER}\n{cluster_states()}",
        "metrics.md": f"{HEADER}\n{metrics_page()}",
    }


def _settings() -> str:
    """Node settings and topic settings, as tables."""
    return "\n".join(
        [
            HEADER,
            "# Settings",
            "",
            "Names, defaults and meaning are Kafka's where Kafka has the setting. A node takes them from",
            "a TOML file (`tierlog server --config FILE`), then from the environment (`log.dirs` is",
            "`TIERLOG_LOG_DIRS`), then from `--set key=value`; the later wins.",
            "",
            "## Node settings",
            "",
            "Those with a mark in the column *runs* change while nodes run, for all of them, or for one:",
            "[how](../howto/hosts.md#change-settings). A node reads the others when it starts.",
            "",
            *_node_table(),
            "",
            "## Topic settings",
            "",
            "Set at creation (`tierlog topic create --config key=value`) or later (`tierlog topic alter`).",
            "",
            *_setting_table(TOPIC_SETTINGS.values()),
            "",
        ]
    )


def _node_table() -> list[str]:
    rows = ["| name | type | default | runs | meaning |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(NODE_SETTINGS):
        *what, meaning = _cells(NODE_SETTINGS[name])
        rows.append(_row(*what, "x" if name in DYNAMIC_SETTINGS else "", meaning))
    return rows


def _setting_table(settings: Iterable[Setting]) -> list[str]:
    rows = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]
    return rows + [_row(*_cells(one)) for one in sorted(settings, key=lambda setting: setting.name)]


def _cells(setting: Setting) -> tuple[str, ...]:
    """Name, type, default and meaning."""
    default = setting.text(setting.default)
    meaning = setting.doc + (f" One of: {', '.join(setting.choices)}." if setting.choices else "")
    return f"`{setting.name}`", setting.type.name.lower(), f"`{default}`" if default else "", meaning


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _protocol() -> str:
    """The APIs that a node advertises, by key."""
    served = sorted((BY_NAME[name] for name in SERVED), key=lambda api: api.key)
    return "\n".join(
        [
            HEADER,
            "# The Kafka protocol",
            "",
            "APIs and versions that a node answers; ApiVersions tells clients the same. A test asks",
            "every one of them in every version. A request for anything else closes the connection.",
            "",
            "| API | key | versions |",
            "| --- | --- | --- |",
            *(f"| {api.name} | {api.key} | {api.least} to {api.most} |" for api in served),
            "",
        ]
    )


def _commands() -> str:
    """Every command with its options, from the command tree itself."""
    import typer

    from tierlog.cli.main import app

    lines = [HEADER, "# The command line", "", "`tierlog COMMAND --help` says the same. Exit codes:", ""]
    lines += ["| code | meaning |", "| --- | --- |"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "`tierlog --install-completion` installs completion for the shell at hand.", ""]
    lines += _group("tierlog", typer.main.get_command(app))
    return "\n".join(lines)


def _group(path: str, command: Any) -> list[str]:
    children = getattr(command, "commands", None)
    if children:
        return [line for name, child in children.items() for line in _group(f"{path} {name}", child)]
    lines = [f"## {path}", "", command.help or "", ""]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    if arguments or options:
        lines += ["| word | meaning |", "| --- | --- |"]
        lines += [f"| `{argument.name.upper()}` | {argument.help or ''} |" for argument in arguments]
        lines += [f"| {_words(option)} | {_meaning(option)} |" for option in options]
        lines.append("")
    return lines


def _words(option: Any) -> str:
    return ", ".join(f"`{word}`" for word in [*option.opts, *option.secondary_opts])


def _meaning(option: Any) -> str:
    words = option.help or ""
    if option.envvar:
        words += f" Environment: `{option.envvar}`."
    if option.default not in (None, False, ()) and not callable(option.default):
        words += f" Default: `{getattr(option.default, 'value', option.default)}`."
    return str(words).replace("|", "\\|")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
