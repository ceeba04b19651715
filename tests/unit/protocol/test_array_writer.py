"""Array writers: a message that is written in parts has the same bytes as the codec writes at once."""

from collections.abc import Iterator

import pytest

from tierlog.protocol.api import APIS
from tierlog.protocol.codec import array_writer, encode, nested_array_writer
from tierlog.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tierlog.protocol.schema import Message, plain_fields


def arrays() -> Iterator[tuple[type[Message], int, str]]:
    """Each array of structs in a response, in each version: message, version and name of the field."""
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            for field in plain_fields(api.response, version):
                if field.array and field.nested is not None:
                    yield api.response, version, field.name


@pytest.mark.parametrize("count", [0, 1, 200])
def test_any_array_of_any_response_can_be_written_in_parts(count: int) -> None:
    for message, version, array in arrays():
        [field] = [field for field in message.FIELDS if field.name == array]
        assert field.nested is not None
        elements = [field.nested() for _ in range(count)]
        writer, other_fields = array_writer(message, version, array), message()
        parts = b"".join(writer.elements(elements[at : at + 3]) for at in range(0, count, 3))
        written = writer.before(other_fields, count) + parts + writer.after(other_fields)
        complete = message(**{array: elements})
        assert written == encode(complete, version), (message, version, array)


@pytest.mark.parametrize("version", range(1, 5))
def test_nested_array_is_written_in_parts(version: int) -> None:
    configs = [DescribeConfigsResourceResult(name=f"name-{n}", value=None) for n in range(3)]
    result = DescribeConfigsResult(resource_type=2, resource_name="täpic")
    outer = array_writer(DescribeConfigsResponse, version, "results")
    inner = nested_array_writer(DescribeConfigsResponse, version, DescribeConfigsResult, "configs")
    response = DescribeConfigsResponse(throttle_time_ms=7)
    parts = [outer.before(response, 1), inner.before(result, 3)]
    parts += [inner.elements(configs), inner.after(result), outer.after(response)]
    result.configs = configs
    response.results = [result]
    assert b"".join(parts) == encode(response, version)


def test_field_that_is_not_an_array_of_structs_is_refused() -> None:
    with pytest.raises(ValueError, match="throttle_time_ms"):
        array_writer(DescribeConfigsResponse, 4, "throttle_time_ms")
