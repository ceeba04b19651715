"""The policy of brokers in terraform/aws has what the object store needs, and nothing more.

The conformance suite of the object store runs against versitygw, and a proxy writes down each request.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import s3_servers
from terraform_cli import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

OBJECTS = "${aws_s3_bucket.history.arn}/${local.prefixes.history}/*"
BUCKET = "aws_s3_bucket.history.arn"
ACTIONS = {
    ("GET", "object", ""): "s3:GetObject",
    ("HEAD", "object", ""): "s3:GetObject",
    ("PUT", "object", ""): "s3:PutObject",
    ("PUT", "object", "partNumber"): "s3:PutObject",
    ("POST", "object", "uploads"): "s3:PutObject",
    ("POST", "object", "uploadId"): "s3:PutObject",
    ("DELETE", "object", "uploadId"): "s3:AbortMultipartUpload",
    ("DELETE", "object", ""): "s3:DeleteObject",
    ("POST", "bucket", "delete"): "s3:DeleteObject",
    ("GET", "bucket", "list-type"): "s3:ListBucket",
    ("GET", "bucket", "uploads"): "s3:ListBucketMultipartUploads",
}
"""(method, resource, what the query has) -> action, by the Service Authorization Reference of AWS."""

OF_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}


def action(request: str) -> str:
    """Action that a recorded request needs; the request itself if it is unknown."""
    method, target, *headers = request.split(" ")
    if headers:
        return request
    url = urlsplit(target)
    resource = "bucket" if url.path.strip("/") == s3_servers.BUCKET else "object"
    query = parse_qs(url.query, keep_blank_values=True)
    known = {"partNumber", "uploads", "uploadId", "delete", "list-type"} & query.keys()
    which = "partNumber" if "partNumber" in known else next(iter(known), "")
    return ACTIONS.get((method, resource, which), request)


def recorded(file: Path) -> list[str]:
    environment = {
        **os.environ,
        "RECORDED_REQUESTS": str(file),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support")]),
    }
    suite = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "recorded_store", "-n", "0", "-k", "versitygw"),
            str(ROOT / "tests/conformance/test_object_store.py"),
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout[-5000:]
    return file.read_text(encoding="utf-8").splitlines()


def policy() -> dict[str, set[str]]:
    """Resource -> actions of S3 in the policy history_policy."""
    text = (ROOT / "terraform/aws/iam.tf").read_text(encoding="utf-8")
    block = text[text.index("history_policy = {") : text.index("volumes_policy = {")]
    statements = re.findall(r"Action\s+= (.*)\n\s+Resource\s+= \"?([^\"\n]*)", block)
    assert block.count('Effect   = "Allow"') + block.count('Effect    = "Allow"') == len(statements)
    allowed: dict[str, set[str]] = {}
    for actions, resource in statements:
        allowed.setdefault(resource, set()).update(re.findall(r'"(s3:\w+)"', actions))
    return {resource: actions for resource, actions in allowed.items() if actions}


def test_policy_allows_what_the_store_does_and_nothing_more(tmp_path: Path) -> None:
    requests = recorded(tmp_path / "requests")
    needed = Counter(map(action, requests))
    assert sum(needed.values()) > 100
    assert policy() == {OBJECTS: needed.keys() - OF_BUCKET, BUCKET: needed.keys() & OF_BUCKET}
