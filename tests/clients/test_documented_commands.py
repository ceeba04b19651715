"""Runs the commands for kcat and Kafka's tools that the documentation shows."""

from pathlib import Path

import pytest
from docs_pages import run_page

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

PAGE = "docs/tutorial/quickstart.md"
TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


def test_documented_kcat_commands_succeed(kcat: str, tierlog_broker: TierlogBroker) -> None:
    assert run_page(PAGE, tierlog_broker, "kcat") > 0


@pytest.mark.parametrize("page", [PAGE, "docs/howto/hosts.md"])
def test_documented_commands_of_kafkas_tools_succeed(
    page: str, java_classpath: str, tierlog_broker: TierlogBroker, tmp_path: Path
) -> None:
    for name, tool in TOOLS.items():  # scripts with the names that they have in a Kafka distribution
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nexec java -Xmx256m -cp '{java_classpath}' {tool} \"$@\"\n")
        script.chmod(0o755)
    assert run_page(page, tierlog_broker, "java", tools=tmp_path) > 0
