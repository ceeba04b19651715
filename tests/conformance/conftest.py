"""Says in the header of the test output which S3 servers the suite runs against."""

import s3_servers


def pytest_report_header() -> str:
    return f"object stores: memory, directory, S3 on {', '.join(s3_servers.available())}"
