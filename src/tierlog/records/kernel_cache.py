"""Machine code of the kernels that was compiled ahead, for processes that live for one query.

Numba's own cache is bound to the path and time of the source file and to the processor, which differ between
the machines of a cluster. The files here are bound to the bytes of the source, the versions of Python and
Numba, and the architecture. They hold code for its baseline: every processor of it runs them. A process that
finds none of its kind compiles as usual.

`tierlog spark package` writes them with `python -m tierlog.spark.values.ahead DIRECTORY`, with
NUMBA_CPU_NAME=generic.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core import caching, compiler

DIRECTORY = Path(__file__).with_name("compiled_kernels")
Function = Callable[..., Any]


class AheadCache(caching.NullCache):
    """Cache of one function: the files that were compiled ahead, then Numba's own cache."""

    def __init__(self, function: Function, numbas: Any, directory: Path = DIRECTORY) -> None:
        self._numbas = numbas
        self._files = _files(function, directory)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        data = self._files.load(_key(sig))
        if data is None:
            return self._numbas.load_overload(sig, target_context)
        target_context.refresh()  # as Numba's cache does
        rebuild: Any = compiler.CompileResult._rebuild  # without types
        return rebuild(target_context, *data)

    def save_overload(self, sig: Any, data: Any) -> None:
        self._numbas.save_overload(sig, data)


def with_code_ahead(dispatcher: Any) -> Any:
    """A compiled function that first looks for code that was compiled ahead, if this installation has any."""
    if DIRECTORY.is_dir():
        dispatcher._cache = AheadCache(dispatcher.py_func, dispatcher._cache)
    return dispatcher


def _files(function: Function, directory: Path) -> Any:
    source = Path(function.__code__.co_filename).read_bytes()
    kind = f"py{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
    make: Any = caching.IndexDataCacheFile  # without types
    return make(str(directory), f"{function.__name__}-{kind}", hashlib.sha256(source).hexdigest())


def _key(sig: Any) -> tuple[str, str]:
    return sys.platform, str(sig)


def save_kernels(directory: Path, modules: Sequence[ModuleType] = ()) -> int:
    """Compile the kernels for all columns, and write them, and those of other modules that this process has
    called. Returns the number of files of code."""
    from tierlog.records import kernels
    from tierlog.records.columnar import COLUMNS, decode_columns
    from tierlog.records.writer import NewRecord, encode_batch

    if os.environ.get("NUMBA_CPU_NAME") != "generic":
        raise RuntimeError("set NUMBA_CPU_NAME=generic: other processors could not run the code")
    batch = encode_batch([NewRecord(0, b"key", b"value", [("name", b"")])])
    for is_checked in (False, True):
        list(decode_columns(batch, list(COLUMNS), is_checked=is_checked))
    directory.mkdir(parents=True, exist_ok=True)
    saved = 0
    for module in (kernels, *modules):
        for function in vars(module).values():
            if getattr(function, "__module__", None) == module.__name__:
                for sig, result in getattr(function, "overloads", {}).items():
                    _files(function.py_func, directory).save(_key(sig), result._reduce())
                    saved += 1
    return saved
