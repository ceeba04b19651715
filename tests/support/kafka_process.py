"""Apache Kafka as a process: one combined broker and controller, run from the jars of the Java tools."""

import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wire_client import Client

from tierlog.cli.cluster_files import free_ports
from tierlog.protocol.messages.api_versions import ApiVersionsRequest

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaProcess:
    """Formats its directory, starts and returns once it serves, or at once with `wait=False`. `stop()` and
    `kill()` end it; `start()` starts it again.

    `more`: properties that replace those below. `ports`: for clients and for controllers; free ones by
    default.
    """

    def __init__(
        self,
        classpath: str,
        directory: Path,
        java: Sequence[str] = JAVA,
        more: str = "",
        *,
        wait: bool = True,
        ports: tuple[int, int] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        port, controller_port = ports or free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        properties = directory / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=port, controller_port=controller_port, data=directory / "data") + more
        )
        formatting = ["kafka.tools.StorageTool", "format", "-t", cluster_id or str(uuid.uuid4())]
        formatting += ["-c", str(properties)]
        subprocess.run(
            [*JAVA, "-cp", classpath, *formatting], check=True, capture_output=True, timeout=START_TIMEOUT_S
        )
        self._log_file = directory / "server.log"
        self._command = [*java, "-cp", classpath, "kafka.Kafka", str(properties)]
        self.start()
        if wait:
            try:
                self.wait()
            except BaseException:
                self.stop()
                raise

    def start(self) -> None:
        """Returns at once."""
        self._log = self._log_file.open("ab")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait for a response: Kafka listens early, but responds only after its broker has registered."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                client = Client(self.bootstrap)
                client.send("ApiVersions", 0, ApiVersionsRequest())
                client.close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka does not serve, see {self._log.name}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
