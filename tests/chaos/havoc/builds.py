"""Two successive builds of tierlog for the nodes of a chaos run, as directories for PYTHONPATH.

`next`: this tree, and a copy of it with the next format and wire version. `previous`: the release before this
tree (`tests/support/builds.py`), and this tree. All nodes begin with the older one, whose formats both read.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tierlog.metadata.versions import SUPPORTED_FORMATS, WIRE_VERSIONS

ROOT = Path(__file__).parents[3]
NEXT, PREVIOUS = "next", "previous"
KINDS = (NEXT, PREVIOUS)
NEXT_VERSION = "99.0.0"


@dataclass(frozen=True, slots=True)
class Builds:
    """None: the build that runs the chaos."""

    older: Path | None
    newer: Path | None

    def other(self, build: Path | None) -> Path | None:
        return self.newer if build == self.older else self.older

    def name(self, build: Path | None) -> str:
        return "the older build" if build == self.older else "the newer build"


def make(kind: str, directory: Path) -> Builds:
    """`directory`: for a copy of this tree."""
    sys.path.append(str(ROOT / "tests" / "support"))
    import builds

    if kind == PREVIOUS:
        return Builds(builds.previous_release(directory / "previous"), None)
    changes = {
        "__init__.py": {"__version__": f'"{NEXT_VERSION}"'},
        "metadata/versions.py": {
            "SUPPORTED_FORMATS": f"({SUPPORTED_FORMATS[0]}, {SUPPORTED_FORMATS[1] + 1})",
            "WIRE_VERSIONS": f"({WIRE_VERSIONS[0]}, {WIRE_VERSIONS[1] + 1})",
        },
    }
    return Builds(None, builds.changed_copy(directory / "next", changes))
