"""Measures the work between two turns of the event loop in function calls, so that tests need no clock."""

import sys
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tierlog

PACKAGES = ("broker/handlers", "metadata/controller", "metadata/evolve.py", "broker/groups")


class LoopSteps:
    """Counts calls of functions in these packages. `functions`: their names; empty: all. Needs asyncio's own
    event loop."""

    def __init__(self, *packages: str, functions: Collection[str] = ()) -> None:
        root = Path(tierlog.__file__).parent
        self._paths = tuple(str(root / package) for package in packages or PACKAGES)
        self._functions = functions
        self._counted: dict[CodeType, bool] = {}
        self._calls = 0
        self.most = 0
        """Between two turns."""
        self.total = 0

    def __enter__(self) -> "LoopSteps":
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "_run_once":
            self._calls = 0
            return
        counted = self._counted.get(code)
        if counted is None:
            named = not self._functions or code.co_name in self._functions
            counted = self._counted[code] = named and code.co_filename.startswith(self._paths)
        if counted:
            self._calls += 1
            self.total += 1
            self.most = max(self.most, self._calls)
