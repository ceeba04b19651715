"""`make demo`: sends a year of flights through tierlog, in eight steps. There are one broker
process, which is killed half way, three client libraries and one bucket.

Everything is compared with the source: the acknowledgements, the consumed records, and Spark's results.
"""

import argparse
import os
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from flights import Flights
from report import Report
from send import Sent
from tiers import Sample, TierWatcher

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.cli.output import console, size
from tierlog.cli.process import BrokerFailed, TierlogBroker

if TYPE_CHECKING:
    from rich.table import Table

TOPIC = "flights"
PARTITIONS = 4
TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": str(512 << 10),
    "segment.ms": str(10 * 365 * 86_400_000),  # a roll depends on record timestamps, which span a year here
    "local.retention.bytes": str(3 << 19),
    "retention.ms": "-1",
}
BROKER_SETTINGS = {"log.retention.check.interval.ms": 500, "remote.log.manager.task.interval.ms": 500}
TIERING_TIMEOUT_S = 60
KEEP_HINT = "Keep the data for inspection with `make demo DEMO_OPTIONS='--keep DIR'`."


def main() -> None:
    parser = argparse.ArgumentParser(description="Send a year of flights through tierlog.")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), help="file for the picture")
    parser.add_argument(
        "--keep", type=Path, help="keep the broker's data and the bucket in this new directory"
    )
    parser.add_argument("--fraction", type=float, default=1.0, help="fraction of the flights to send")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # deprecations of libraries in Spark's workers
    try:
        run(arguments.picture, arguments.keep, arguments.fraction)
    except CliError as error:
        sys.exit(f"demo: {error.message}\n{error.hint}")
    except BrokerFailed as failure:
        sys.exit(f"demo: {failure}\n{KEEP_HINT}")


def run(picture: Path, keep: Path | None, fraction: float) -> None:
    """Run all steps. `keep`: a new directory for all data. Raises CliError if a check fails."""
    if not picture.absolute().parent.is_dir():
        raise CliError(
            f"{picture.absolute().parent} is not a directory", hint="Choose another file with --picture."
        )
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as failure:
            raise CliError(
                f"cannot create {keep}: {failure.strerror}", hint="Give a directory that does not exist yet."
            ) from None
        _run(keep, picture, fraction)
        return
    with tempfile.TemporaryDirectory(prefix="tierlog-demo-", ignore_cleanup_errors=True) as directory:
        _run(Path(directory), picture, fraction)


def _run(directory: Path, picture: Path, fraction: float) -> None:
    report = Report(console())
    flights = Flights(fraction)
    with ExitStack() as stack:
        broker = stack.enter_context(TierlogBroker(directory, BROKER_SETTINGS))
        report.console.print(
            f"[bold]tierlog[/] serves at {broker.bootstrap}, process {broker.pid}, data in {directory}"
        )
        watcher = TierWatcher(TOPIC)
        sent, bucket_ends = _steps_with_broker(report, broker, watcher, flights)
        with report.step("A Spark stream reads the bucket, then the tail from the broker"):
            from follow import follow
            from query import export, query, spark_session

            session = stack.enter_context(spark_session(directory / "spark.log"))
            follow(report, session, broker, TOPIC, flights, sent)
        broker.stop()
        with report.step("Spark reads the bucket; the broker is stopped"):
            query(report, session, broker.object_dir, TOPIC, flights, sent, bucket_ends)
        with report.step("Spark exports the bucket to Parquet, and pandas reads that"):
            export(report, broker.object_dir, TOPIC, flights, sent, bucket_ends)
    with report.step("A picture, and the figures"):
        from picture import draw

        draw(picture, TOPIC, watcher.samples, watcher.moments)
        report.say(f"local and remote offsets over time: {picture.absolute()}")
    report.figure(
        "peak memory of this process", size(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    )
    report.finish()
    if report.failed:
        raise CliError(
            "the demo failed: " + "; ".join(report.failed),
            hint=KEEP_HINT,
        )


def _steps_with_broker(
    report: Report, broker: TierlogBroker, watcher: TierWatcher, flights: Flights
) -> tuple[Sent, dict[int, int]]:
    """Steps 1 to 4, and the flush. Returns the acknowledgements, and each partition's remote end offset."""
    from receive import consume
    from send import produce

    admin = AdminApi(broker.admin_url)
    with report.step(f"Topic “{TOPIC}”, {PARTITIONS} partitions, tiered"):
        _create_topic(report, broker.bootstrap)
        watcher.listen(broker.admin_url)
    with report.step("All flights that left New York in 2013 are produced; the broker is killed half way"):
        sent = produce(report, broker, watcher, TOPIC, flights)
    with report.step("Rolled segments move to the object store"):
        _keep_nothing_local(report, broker.bootstrap)
        watcher.mark("local retention reduced")
        tiered = _wait_until_tiered(report, watcher, admin)
    with report.step("A consumer group reads everything from offset 0"):
        watcher.mark("consumers")
        consume(report, broker.bootstrap, TOPIC, flights, sent, _remote_share(tiered))
        watcher.look(admin)
    admin.post("/v1/tier/flush", {"topic": TOPIC})
    watcher.mark("flush")
    flushed = watcher.look(admin)
    report.say("[bold]tierlog tier flush[/]: the active segments are in the bucket too")
    report.figure(
        "bytes in the object store", size(sum(tiers.remote_bytes for tiers in flushed.partitions.values()))
    )
    report.figure("peak memory of the broker, after the crash", size(broker.memory_bytes()[1]))
    return sent, {partition: tiers.remote_end for partition, tiers in flushed.partitions.items()}


def _create_topic(report: Report, bootstrap: str) -> None:
    """Create the topic with librdkafka's admin client, as a user's tools would."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap})
    with report.progress("created with librdkafka's admin client", 1) as bar:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=TOPIC_CONFIG)])[TOPIC].result(30)
        bar.reach(1)
    report.check(
        "number of partitions", PARTITIONS, len(admin.list_topics(TOPIC, 30).topics[TOPIC].partitions)
    )


def _keep_nothing_local(report: Report, bootstrap: str) -> None:
    """Change the topic's local retention, so that uploaded segments are deleted from local disk."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entry = ConfigEntry("local.retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
    report.say("local.retention.bytes is now 1: uploaded segments are deleted from local disk")


def _wait_until_tiered(report: Report, watcher: TierWatcher, admin: AdminApi) -> Sample:
    from rich.live import Live

    with Live(console=report.console, refresh_per_second=8) as live:
        watcher.look(admin)
        tiered = watcher.wait(
            lambda sample: sample.only_active_is_local,
            lambda sample: live.update(_table(sample)),
            TIERING_TIMEOUT_S,
        )
    if not report.console.is_terminal:
        report.console.print()  # Live does not end with a newline there
    report.check("only active segments are left on local disk", True, tiered.only_active_is_local)
    return tiered


def _table(sample: Sample) -> "Table":
    from rich.table import Table

    table = Table(title=f"{TOPIC}, {sample.seconds:.1f} s after its creation", title_justify="left")
    for heading in ("partition", "remote", "remote bytes", "local", "local bytes", "closed segments"):
        table.add_column(heading, justify="right")
    for partition, tiers in sorted(sample.partitions.items()):
        table.add_row(
            str(partition),
            f"{tiers.log_start:,} to {tiers.remote_end:,}",
            size(tiers.remote_bytes),
            f"{tiers.local_start:,} to {tiers.log_end:,}",
            size(tiers.local_bytes),
            str(tiers.closed_segments),
        )
    return table


def _remote_share(sample: Sample) -> float:
    """Fraction of the log's bytes that a reader from offset 0 gets from the object store."""
    tiers = sample.partitions.values()
    remote, local = sum(tier.remote_bytes for tier in tiers), sum(tier.local_bytes for tier in tiers)
    return remote / max(remote + local, 1)


if __name__ == "__main__":
    main()
