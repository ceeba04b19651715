"""Completion of names for the shell: bounded in time, and silent if anything fails.

Called by typer in a process of its own, while a user waits at the prompt.
"""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient

TIME_MAX_S = 1.0
NAMES_MAX = 200
PLAIN = re.compile(r"[\w.@%+=,/-]+", re.ASCII)
"""Names that are completed. Clients choose the ids of groups. A shell puts completions into the command line
without quotes, and zsh evaluates the text in which it gets them: another name could run a command."""


def profiles(incomplete: str) -> list[str]:
    """Names of profiles."""

    def names() -> list[str]:
        from tierlog.cli.profiles import load

        return sorted(load().by_name)

    return _bounded(names, incomplete)


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the cluster's topics, without internal ones."""

    def names() -> list[str]:
        with _client(context) as client:
            return [one.name or "" for one in client.metadata().topics if not one.is_internal]

    return _bounded(names, incomplete)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the cluster's groups."""
    from tierlog.cli import groups

    def names() -> list[str]:
        with _client(context) as client:
            return [row["group"] for row in groups.rows(client)]

    return _bounded(names, incomplete)


def node_settings(incomplete: str) -> list[str]:
    """Names of settings that can change while nodes run."""

    def names() -> list[str]:
        from tierlog.config.dynamic import DYNAMIC_SETTINGS

        return sorted(DYNAMIC_SETTINGS)

    return _bounded(names, incomplete)


def topic_settings(incomplete: str) -> list[str]:
    """Names of settings of topics."""

    def names() -> list[str]:
        from tierlog.config.topic import TOPIC_SETTINGS

        return sorted(TOPIC_SETTINGS)

    return _bounded(names, incomplete)


def _client(context: typer.Context) -> "KafkaClient":
    """For the target of the command line as far as it is typed."""
    import os

    from tierlog.cli.client import KafkaClient
    from tierlog.cli.client_config import choose_profile, remember
    from tierlog.cli.command_tree import typed_profile

    bootstrap = context.params.get("bootstrap") or os.environ.get("TIERLOG_BOOTSTRAP")
    file = context.params.get("client_config") or os.environ.get("TIERLOG_CLIENT_CONFIG")
    remember(Path(file) if file else None)
    given = [name for name, value in (("--bootstrap", bootstrap), ("--client-config", file)) if value]
    choose_profile(typed_profile(context), given)
    return KafkaClient(bootstrap, timeout_s=TIME_MAX_S)


def _bounded(names: Callable[[], list[str]], incomplete: str) -> list[str]:
    """Names that begin with the text. None after TIME_MAX_S: the thread ends with the process."""
    found: list[str] = []

    def collect() -> None:
        try:
            found.extend(name for name in names() if name.startswith(incomplete) and PLAIN.fullmatch(name))
        except (Exception, SystemExit):
            return  # a shell shows whatever is printed

    thread = threading.Thread(target=collect, daemon=True, name="completion")
    thread.start()
    thread.join(TIME_MAX_S)
    return sorted(found)[:NAMES_MAX]
