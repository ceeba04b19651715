"""The policy for AWS of docs/howto/object-store.md allows every operation of the S3 store."""

import json
import re

from docs_pages import ROOT

ACTIONS = {
    "put_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "delete_objects": "s3:DeleteObject",
    "list_objects_v2": "s3:ListBucket",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
}
"""Operation -> action, by the Service Authorization Reference of AWS."""


def test_policy_allows_each_operation_of_the_store() -> None:
    source = (ROOT / "tiering/s3.py").read_text(encoding="utf-8")
    operations = set(re.findall(r'_call\(\s*"(\w+)"', source))
    assert operations == {*ACTIONS}
    page = (ROOT / "docs/howto/object-store.md").read_text(encoding="utf-8")
    policy = json.loads(page[page.index("       {\n") : page.index("\n       }\n") + 10])
    allowed: dict[str, set[str]] = {}
    for statement in policy["Statement"]:
        actions = statement["Action"]
        allowed.setdefault(statement["Resource"], set()).update(
            [actions] if isinstance(actions, str) else actions
        )
    of_bucket = {action for action in ACTIONS.values() if action.startswith("s3:ListBucket")}
    assert allowed == {
        "arn:aws:s3:::my-bucket": of_bucket,
        "arn:aws:s3:::my-bucket/prod/*": {*ACTIONS.values()} - of_bucket,
    }
