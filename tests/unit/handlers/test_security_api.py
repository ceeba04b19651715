"""ACLs are answered as Kafka does without an authorizer."""

from collections import Counter
from typing import Any

import pytest

from tierlog.broker.handlers.acls import refusing_acl_handlers
from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import decode, encode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import create_acls, delete_acls

REQUESTS: dict[str, dict[str, Any]] = {
    "CreateAcls": {"creations": [create_acls.AclCreation(), create_acls.AclCreation()]},
    "DeleteAcls": {"filters": [delete_acls.DeleteAclsFilter(), delete_acls.DeleteAclsFilter()]},
}


HANDLERS = refusing_acl_handlers()


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_every_version_has_kafkas_error(name: str) -> None:
    api = BY_NAME[name]
    for version in range(api.min_version, api.max_version + 1):
        context = RequestContext(api.key, version, 1, "c", Connection(1, "h", 1))
        request = api.request(**REQUESTS.get(name, {}))
        answer: Any = decode(
            api.response, version, memoryview(encode(HANDLERS[name](context, request), version))
        )
        counted: Counter[int] = Counter()
        count = counter_of(api.response, counted)
        assert count is not None
        count(answer)
        assert counted == {ErrorCode.SECURITY_DISABLED: 2 if name in REQUESTS else 1}


def test_messages_equal_kafkas() -> None:
    def answer(name: str) -> Any:
        api = BY_NAME[name]
        context = RequestContext(api.key, api.max_version, 1, "c", Connection(1, "h", 1))
        return HANDLERS[name](context, api.request(**REQUESTS.get(name, {})))

    assert answer("DescribeAcls").error_message == "No Authorizer is configured on the broker"
    assert answer("CreateAcls").results[1].error_message == "No Authorizer is configured."
    assert answer("DeleteAcls").filter_results[1].error_message == "No Authorizer is configured."
