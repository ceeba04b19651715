"""Formats of keys and values: bytes of records from JSON and back, and data that does not fit."""

import asyncio
import io
import json
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_registry import USER, Registry, running

from tierlog.client.registry import RegistryAddress
from tierlog.rest.errors import RestError
from tierlog.rest.formats import FRAME, Format, SchemaChoice, Unreadable, Values, minified

NONE = SchemaChoice(subject="t-value")
FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "flight",
        "fields": [
            {"name": "origin", "type": "string"},
            {"name": "delay", "type": ["null", "int"], "default": None},
        ],
    }
)
JSON_VALUES = (
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
).flatmap(lambda value: st.sampled_from([value, [value], {"a b": value, "": [value]}]))


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running() as served:
        yield served


@pytest.fixture
def values(registry: Registry) -> Values:
    return Values(RegistryAddress(url=registry.url, user=USER))


async def encoded(kind: Format, text: str, choice: SchemaChoice = NONE, values: Values | None = None) -> Any:
    return await (values or Values(None)).encoded(kind, msgspec.Raw(text.encode()), choice, "value")


@given(JSON_VALUES, st.sampled_from([None, 1, "\t"]))
def test_white_space_between_tokens_disappears_and_nothing_else(value: object, indent: Any) -> None:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert (
        minified(msgspec.Raw(json.dumps(value, indent=indent, ensure_ascii=False).encode()))
        == compact.encode()
    )


@pytest.mark.parametrize("part", [b"x y ", b'\\" x'])
def test_long_strings_cost_no_more_memory_than_their_bytes(part: bytes) -> None:
    text = b'"' + part * (1 << 20 >> 2) + b'"'
    tracemalloc.start()
    assert minified(msgspec.Raw(text)) == text
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(text)


async def test_json_that_is_too_deep_is_refused() -> None:
    deep = "[ " * 100_000 + "]" * 100_000
    with pytest.raises(RestError, match="recursion"):
        await encoded(Format.JSON, deep)
    with pytest.raises(Unreadable):
        (await Values(None).decoder(Format.JSON, []))(deep.encode())


async def test_numbers_keep_their_text() -> None:
    assert await encoded(Format.JSON, '{"a": [1.50, 1e400, 12345678901234567890123]}') == (
        b'{"a":[1.50,1e400,12345678901234567890123]}'
    )


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Format.STRING, '"h\\u00e9llo"', "héllo".encode()),
        (Format.STRING, '""', b""),
        (Format.BINARY, '"AAEC/w=="', b"\0\1\2\xff"),
        (Format.JSON, '"x"', b'"x"'),
        (Format.JSON, "null", None),
        (Format.STRING, "null", None),
        (Format.BINARY, "null", None),
    ],
)
async def test_values_become_bytes_and_come_back(kind: Format, text: str, expected: bytes | None) -> None:
    found = await encoded(kind, text)
    assert found == expected
    if found is not None:
        decoder = await Values(None).decoder(kind, [found])
        assert json.loads(bytes(decoder(found))) == json.loads(text)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (Format.STRING, "5", "is a string of JSON"),
        (Format.STRING, '{"a":1}', "is a string of JSON"),
        (Format.BINARY, "[]", "is a string of JSON"),
        (Format.BINARY, '"!!"', "not base64"),
        (Format.BINARY, '"AAA"', "not base64"),
        (Format.AVRO, "{}", "needs a schema registry"),
    ],
)
async def test_data_of_another_type_is_refused(kind: Format, text: str, why: str) -> None:
    with pytest.raises(RestError, match=why):
        await encoded(kind, text)


@pytest.mark.parametrize(
    ("kind", "data"), [(Format.JSON, b"{"), (Format.JSON, b'"\xff"'), (Format.STRING, b"\xff")]
)
async def test_bytes_in_another_format_are_unreadable(kind: Format, data: bytes) -> None:
    decoder = await Values(None).decoder(kind, [data])
    with pytest.raises(Unreadable):
        decoder(data)


async def test_deeply_nested_json_is_unreadable_and_does_not_end_the_process() -> None:
    decoder = await Values(None).decoder(Format.JSON, [])
    with pytest.raises(Unreadable):
        decoder(b"[" * 1_000_000)


# ---- Avro ------------------------------------------------------------------------------------------


async def test_avro_values_have_the_frame_of_the_registry(registry: Registry, values: Values) -> None:
    number = registry.register("t-value", FLIGHT)
    for choice in (NONE, SchemaChoice(schema_id=number, subject="t-value")):
        found = await encoded(Format.AVRO, '{"origin": "EWR", "delay": {"int": 7}}', choice, values)
        assert FRAME.unpack(found[:5]) == (0, number)
        schema = fastavro.parse_schema(json.loads(FLIGHT))
        assert fastavro.schemaless_reader(io.BytesIO(found[5:]), schema, None) == {
            "origin": "EWR",
            "delay": 7,
        }
        decoder = await values.decoder(Format.AVRO, [found])
        assert json.loads(bytes(decoder(found))) == {"origin": "EWR", "delay": {"int": 7}}


@pytest.mark.parametrize("text", ["5", "[]", '{"origin": 5}', "{}", '{"origin":"x","delay":7}', "null"])
async def test_avro_data_that_does_not_follow_the_schema_is_refused(
    text: str, registry: Registry, values: Values
) -> None:
    choice = SchemaChoice(schema_id=registry.register("bad-value", FLIGHT))
    with pytest.raises(RestError, match="does not follow the Avro schema") as refused:
        await encoded(Format.AVRO, text, choice, values)
    assert refused.value.status == 400


async def test_bytes_that_are_not_avro_of_a_known_schema_are_unreadable(
    registry: Registry, values: Values
) -> None:
    known = registry.register("broken-value", FLIGHT)
    cases = [
        b"",
        b"\0\0\0",
        b"\1" + b"\0" * 9,
        FRAME.pack(0, 4711) + b"\0",
        FRAME.pack(0, known) + b"\xff" * 20,
    ]
    decoder = await values.decoder(Format.AVRO, cases)
    for data in cases:
        with pytest.raises(Unreadable):
            decoder(data)


@pytest.mark.parametrize(
    "schema",
    [
        '{"type":"record","name":"n","fields":[{"name":"next","type":["null","n"]}]}',
        '{"type":"array","items":"null"}',
        '{"type":"array","items":{"type":"record","name":"e","fields":[]}}',
        '{"type":"record","name":"r","fields":[{"name":"e","type":{"type":"fixed","name":"f","size":0}},'
        '{"name":"a","type":{"type":"array","items":"f"}}]}',
        '{"type":"record"}',
        "nonsense",
        "[" * 100_000,
    ],
)
async def test_schema_whose_values_could_exhaust_the_gateway_is_refused(
    schema: str, registry: Registry, values: Values
) -> None:
    """fastavro recurses in C without a limit, and makes any number of items out of no bytes."""
    choice = SchemaChoice(schema_id=registry.register("hostile-value", schema))
    with pytest.raises(RestError) as refused:
        await encoded(Format.AVRO, "{}", choice, values)
    assert refused.value.status == 400


async def test_registry_that_does_not_respond_is_no_fault_of_the_client(
    registry: Registry, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.client.registry.PAUSE_S", 0)
    registry.fail_next = 4
    with pytest.raises(RestError) as failure:
        await encoded(Format.AVRO, "{}", SchemaChoice(subject="t-value"), values)
    assert failure.value.status == 502
    with pytest.raises(RestError) as missing:
        await encoded(Format.AVRO, "{}", SchemaChoice(subject="nowhere"), values)
    assert missing.value.code == 40407


async def test_registry_that_hangs_does_not_hold_the_threads_of_logins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("tierlog.client.registry.schema_of_id", lambda *_: str(ended.wait()))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    values = Values(RegistryAddress(url="http://127.0.0.1:1"))
    wanted = [FRAME.pack(0, number) for number in range(64)]
    calls = [asyncio.ensure_future(values.decoder(Format.AVRO, [value])) for value in wanted]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(len, wanted), 60) == 64
    finally:
        ended.set()
    await asyncio.gather(*calls)
