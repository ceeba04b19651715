"""`tierlog dev`: a temporary single-node broker, for a laptop or a test suite.

Its data and object store are in a temporary directory, removed when the broker stops; `--data-dir` keeps
them. Once the broker accepts requests, `--json` prints `{"bootstrap": …, "admin": …, "pid": …, "path": …}` on
one line, which `cli.process` reads. `path` is the option of that name of Spark's data source.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.options import Json, Settings, make_directory, node_settings
from tierlog.cli.output import print_status

if TYPE_CHECKING:
    from tierlog.config.node import NodeSettings

DEV_SETTINGS = {
    "auto.create.topics.enable": "true",
    # Long enough that consumers which start together share one rebalance, short enough not to be noticed.
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "default.replication.factor": "1",
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "remote.log.manager.task.interval.ms": "1000",
    "remote.cache.bytes": str(256 << 20),
}
"""Defaults for a single node where they differ from those of a cluster. `--set` and the environment override
them."""


def dev(
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65_535, help="Port for Kafka clients. 0 picks a free one."),
    ] = 9092,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port of the admin HTTP API. 0 picks a free one. Default: 9644, or 0 with --port 0.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep the data in this directory. Default: a temporary directory, removed at exit."
        ),
    ] = None,
    object_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="file:///dir or s3://bucket/prefix?endpoint=… Default: inside the data directory.",
        ),
    ] = None,
    sets: Settings = None,
    as_json: Json = False,
    exit_with_parent: Annotated[
        bool,
        typer.Option(
            "--exit-with-parent",
            help="Stop when standard input closes, which happens when the parent process ends.",
        ),
    ] = False,
) -> None:
    """Start a temporary broker on this machine."""
    import tempfile

    from tierlog.cli.node import serve, stop_at_end_of_input

    if exit_with_parent:
        stop_at_end_of_input()
    chosen_admin = (0 if port == 0 else 9644) if admin_port is None else admin_port
    if data_dir is not None:
        make_directory(data_dir, "--data-dir")
        serve(
            _settings(port, chosen_admin, data_dir.absolute(), object_store, sets),
            as_json=as_json,
            with_path=True,
        )
        print_status(f"stopped; the data stays in {data_dir.absolute()}")
        return
    with tempfile.TemporaryDirectory(prefix="tierlog-dev-", ignore_cleanup_errors=True) as temporary:
        serve(
            _settings(port, chosen_admin, Path(temporary), object_store, sets),
            as_json=as_json,
            with_path=True,
        )
    print_status("stopped; the data is deleted")


def _settings(
    port: int, admin_port: int, directory: Path, object_store: str | None, sets: list[str] | None
) -> "NodeSettings":
    """The settings of the node, in ascending precedence: defaults with ports and directories, the
    environment, `--object-store` and `--set`."""
    from tierlog.cli.node import read_settings

    return read_settings(
        defaults={
            **DEV_SETTINGS,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "admin.listener": f"127.0.0.1:{admin_port}",
            "log.dirs": str(directory),
            "object.store.url": f"file://{directory / 'objects'}",
        },
        options={
            **({"object.store.url": object_store} if object_store else {}),
            **node_settings(sets),
        },
    )
