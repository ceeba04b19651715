"""Compiles the hot modules with mypyc (ADR 0007): `python .ci/compile_hot.py TARGET`.

TARGET becomes a directory for PYTHONPATH: a complete tierlog, in which each module of `HOT` has a compiled
extension beside its source, which Python prefers. The sources also run without the extensions, so a build
without a C compiler is complete. With `--wheel`, TARGET gets a wheel for this platform instead. `--check`
fails unless Python finds the compiled modules. Called by `make compiled` and `make test-compiled`.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

HOT = (
    "base/histogram.py",
    "base/leader_epochs.py",
    "broker/handlers/chain.py",
    "broker/handlers/fetch.py",
    "broker/handlers/fetch_response.py",
    "broker/handlers/fetch_sessions.py",
    "broker/handlers/produce.py",
    "broker/handlers/purgatory.py",
    "broker/net/connection.py",
    "broker/net/core/protocol.py",
    "broker/net/core/receive.py",
    "broker/net/core/send_queue.py",
    "broker/net/dispatch.py",
    "broker/net/outbox.py",
    "broker/replication/broker_connection.py",
    "broker/replication/core/follower.py",
    "broker/replication/core/in_sync.py",
    "broker/replication/core/leader.py",
    "broker/replication/fetch_session_handler.py",
    "broker/replication/fetcher_partitions.py",
    "broker/replication/follower_role.py",
    "broker/replication/leader_role.py",
    "broker/replication/replica.py",
    "broker/storage/checked_batches.py",
    "broker/storage/core/batch_validation.py",
    "broker/storage/core/complete_transactions.py",
    "broker/storage/core/continuity.py",
    "broker/storage/core/producer_state.py",
    "broker/storage/core/retention.py",
    "broker/storage/log.py",
    "broker/storage/segment_scrub.py",
    "protocol/api.py",
    "protocol/codec.py",
    "protocol/primitives.py",
    "protocol/replica_fetch.py",
    "records/batch.py",
    "records/indexes.py",
    "records/walk.py",
)
"""The modules on the produce, fetch and upload path, from a profile. A module whose `async def` is inspected
by type, or whose class is a base of uncompiled classes, cannot be compiled; nor can a NamedTuple with a
memoryview."""

REPOSITORY = Path(__file__).resolve().parent.parent
NOT_COPIED = (".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "tests", "terraform")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile tierlog's hot modules.")
    parser.add_argument("target", type=Path, nargs="?", default=REPOSITORY / "build/compiled")
    parser.add_argument(
        "--check", action="store_true", help="build nothing; fail unless Python finds them compiled"
    )
    parser.add_argument("--wheel", action="store_true", help="a wheel, not a directory for PYTHONPATH")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(not_compiled())
    target = arguments.target.absolute()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tierlog-compile-") as scratch:
        copy = Path(scratch) / "tierlog"
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        os.chdir(copy)  # compiler and builder leave files where they run
        if arguments.wheel:
            build("bdist_wheel", "--dist-dir", str(target))
            return
        build("build", "--build-lib", str(copy / "built"))
        shutil.rmtree(target)
        shutil.move(copy / "built", target)


def not_compiled() -> str | None:
    """An error message if Python finds the source of a hot module; None if all are compiled."""
    names = [f"tierlog.{Path(module).with_suffix('').as_posix().replace('/', '.')}" for module in HOT]
    plain = [name for name in names if str(importlib.import_module(name).__file__).endswith(".py")]
    return f"not compiled: {', '.join(plain)}; is PYTHONPATH what `make compiled` made?" if plain else None


def build(*command: str) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    sys.argv = ["setup.py", "--quiet", *command]
    extensions = mypycify(
        [*(str(Path("src/tierlog", module)) for module in HOT)], opt_level="3", debug_level="0"
    )
    setup(ext_modules=extensions)


if __name__ == "__main__":
    main()
