"""Runs `tierlog …` inside this process, which is fast; returns its exit status and output."""

import io
import sys
from typing import NamedTuple

import pytest

from tierlog.cli import main


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def call(*words: str, stdin: bytes = b"") -> Ended:
    """Exceptions other than SystemExit pass through: in a process of its own they would be tracebacks."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tierlog", *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ended(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
