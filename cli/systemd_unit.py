"""The systemd unit of a node, for `tierlog generate systemd`: a link to that of terraform/host."""

from importlib.resources import files
from pathlib import Path

from tierlog.cli.errors import usage

NAME = "tierlog@.service"


def unit(program: Path, user: str) -> str:
    """The unit's text. Raises CliError for a path or a name that systemd does not accept there."""
    text = (files("tierlog.cli") / NAME).read_text(encoding="utf-8")
    if not program.is_absolute() or not str(program).isprintable() or set(str(program)) & set(" %$\"'\\"):
        raise usage(f"invalid --program {str(program)!r}", hint="Give an absolute path of plain characters.")
    if not user.isascii() or not user.replace("-", "").replace("_", "").isalnum():
        raise usage(f"invalid --user {user!r}", hint="Give the name of a user and group of the host.")
    text = text.replace("/opt/tierlog/bin/tierlog", str(program))
    return text.replace("User=tierlog\nGroup=tierlog\n", f"User={user}\nGroup={user}\n")
