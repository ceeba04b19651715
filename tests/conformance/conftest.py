"""Prints at the end of the test output which object stores were tested (-q hides pytest's header)."""

import pytest
import s3_servers


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    servers = s3_servers.available()
    terminalreporter.write_line(f"object stores tested: memory, directory, S3 on {', '.join(servers)}")
    if "minio" not in servers:
        terminalreporter.write_line(
            "  not tested: minio (TIERLOG_TEST_MINIO=1 builds it once, about five minutes)"
        )
