"""Broker processes in which constants of modules have other values: intervals that no setting changes."""

import stat
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import importlib
import runpy
import sys

for module, name, value in {changes!r}:
    setattr(importlib.import_module(module), name, value)
assert sys.argv[1] == "-m"
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def python_with(directory: Path, *changes: tuple[str, str, Any]) -> str:
    """A program that starts a broker as Python does. `changes`: module, constant, value."""
    program = directory / "python"
    program.write_text(PROGRAM.format(python=sys.executable, changes=changes))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)
