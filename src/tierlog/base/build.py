"""Build of this tierlog: its version, and the commit that it was made from, if the build recorded one.

`.ci/release` writes the commit into the file `build.json` of the package. A checkout has no such file: its
commit may not be what runs.
"""

import json
from functools import cache
from pathlib import Path

from tierlog import __version__

VERSION = __version__
COMMIT_LETTERS = 8
"""Letters of the commit that are shown: enough to be unique in this repository."""

_FILE = Path(__file__).parents[1] / "build.json"


@cache
def commit() -> str:
    """The commit, shortened; empty if it is not known."""
    try:
        return str(json.loads(_FILE.read_text(encoding="utf-8"))["commit"])[:COMMIT_LETTERS]
    except (OSError, ValueError, KeyError):
        return ""


def described() -> str:
    """The build as people read it, such as `0.1.0 (commit 46ccc503)`."""
    return f"{VERSION} (commit {commit()})" if commit() else VERSION
