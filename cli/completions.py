"""Completion of names for the shell: bounded in time, and silent if anything fails.

Called by typer in a process of its own, while a user waits at the prompt.
"""

import threading
from collections.abc import Callable

TIME_MAX_S = 1.0
NAMES_MAX = 200


def profiles(incomplete: str) -> list[str]:
    """Names of profiles."""

    def names() -> list[str]:
        from tierlog.cli.profiles import load

        return sorted(load().by_name)

    return _bounded(names, incomplete)


def _bounded(names: Callable[[], list[str]], incomplete: str) -> list[str]:
    """Names that begin with the text. None after TIME_MAX_S: the thread ends with the process."""
    found: list[str] = []

    def collect() -> None:
        try:
            found.extend(name for name in names() if name.startswith(incomplete))
        except (Exception, SystemExit):
            return  # a shell shows whatever is printed

    thread = threading.Thread(target=collect, daemon=True, name="completion")
    thread.start()
    thread.join(TIME_MAX_S)
    return sorted(found)[:NAMES_MAX]
