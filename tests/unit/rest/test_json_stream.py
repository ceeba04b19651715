"""Streams of JSON objects are split at their ends, wherever the network cuts them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.rest.errors import RestError
from tierlog.rest.json_stream import JsonSplitter, has_more_objects

VALUES = st.none() | st.integers() | st.text() | st.lists(st.text(max_size=5) | st.booleans(), max_size=5)
OBJECTS = st.dictionaries(st.text(), VALUES | st.dictionaries(st.text(), VALUES, max_size=3), max_size=5)


@settings(max_examples=50)
@given(st.lists(OBJECTS, max_size=6), st.lists(st.integers(1, 50)), st.sampled_from(["", "\n", " \r\n\t"]))
def test_objects_come_out_as_they_went_in(objects: list[object], cuts: list[int], between: str) -> None:
    text = between.join(json.dumps(one, ensure_ascii=False) for one in objects)
    data = text.encode("utf-8", "surrogatepass")
    splitter, found = JsonSplitter(1 << 20), []
    for size in cuts:
        found += splitter.feed(data[:size])
        data = data[size:]
    found += splitter.feed(data)
    splitter.finish()
    assert [json.loads(one.decode("utf-8", "surrogatepass")) for one in found] == objects


def test_objects_before_an_error_come_out() -> None:
    found = []
    with pytest.raises(RestError, match="expected an object"):
        for one in JsonSplitter(100).feed(b'{"a":1} {"b":2} nonsense'):
            found.append(one)  # noqa: PERF402  (the error must not lose them)
    assert found == [b'{"a":1}', b'{"b":2}']


def test_incomplete_object_at_the_end_is_an_error() -> None:
    splitter = JsonSplitter(100)
    assert list(splitter.feed(b'{"a":"}\\')) == []
    with pytest.raises(RestError, match="ends within"):
        splitter.finish()


def test_object_longer_than_the_limit_is_an_error_before_it_ends() -> None:
    with pytest.raises(RestError, match="longer than 100 bytes"):
        list(JsonSplitter(100).feed(b'{"a":"' + b"x" * 100))


def test_open_string_spans_pieces() -> None:
    splitter = JsonSplitter(100)
    assert list(splitter.feed(b'  {"a":"x\\')) == []
    assert list(splitter.feed(b'"}"}  {"b":[')) == [b'{"a":"x\\"}"}']
    assert list(splitter.feed(b"]} ")) == [b'{"b":[]}']
    splitter.finish()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"records":[]}', 0),
        ('{"records":[{},{"value":{"a":[{}]}},{"headers":[{"name":"h"}]}]}', 3),
        ('{"key_schema":{"schema":"{{\\"{"},"records":[{"key":"\\\\"},{"key":"{{{"},{}]}', 3),
        ('{"records":[{},{', 2),
        ('{"records":["{', 0),
    ],
)
async def test_objects_at_a_depth_are_counted(text: str, count: int) -> None:
    body = text.encode()
    assert not await has_more_objects(body, 2, count)
    assert count == 0 or await has_more_objects(body, 2, count - 1)
