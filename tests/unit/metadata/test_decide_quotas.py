"""AlterQuotas: what is stored, what is refused, and that an entity changes completely or not at all."""

import math
from typing import Any

import pytest
from immutables import Map

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import quotas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import VERSION, UnknownSnapshotVersion, decode_image, encode_image
from tierlog.metadata.records import QUOTA_NAME_MAX
from tierlog.protocol.errors import ErrorCode

World = Any
Entity = tuple[tuple[str, str | None], ...]
ADA = (("user", "ada"),)
APP = (("client-id", "app"),)
BOTH = (("client-id", "app"), ("user", "ada"))


def alteration(entity: Entity, **values: float | None) -> c.QuotaAlteration:
    changes = tuple(c.QuotaChange(key=key, value=value) for key, value in values.items())
    return c.QuotaAlteration(entity=entity, changes=changes)


def alter(world: World, *alterations: c.QuotaAlteration, validate_only: bool = False) -> Any:
    return world.do(c.AlterQuotas(alterations=alterations, validate_only=validate_only)).entities


def test_quotas_are_set_changed_and_removed(world: World) -> None:
    assert alter(world, alteration(ADA, producer_byte_rate=5.0, request_percentage=0.5)) == (
        c.QuotaOutcome(entity=ADA),
    )
    assert world.image.quotas == Map({ADA: Map({"producer_byte_rate": 5.0, "request_percentage": 0.5})})
    alter(world, alteration(ADA, producer_byte_rate=6.0, request_percentage=None, consumer_byte_rate=None))
    assert world.image.quotas == Map({ADA: Map({"producer_byte_rate": 6.0})})
    alter(world, alteration(ADA, producer_byte_rate=None))
    assert world.image.quotas == Map()


def test_the_order_of_a_pair_does_not_matter(world: World) -> None:
    alter(world, alteration(BOTH[::-1], producer_byte_rate=5.0))
    alter(world, alteration(BOTH, consumer_byte_rate=7.0))
    assert world.image.quotas == Map({BOTH: Map({"producer_byte_rate": 5.0, "consumer_byte_rate": 7.0})})


def test_change_without_effect_writes_no_record(world: World) -> None:
    alter(world, alteration(ADA, producer_byte_rate=5.0))
    alter(world, alteration(ADA, producer_byte_rate=5.0), alteration(APP, producer_byte_rate=None))
    assert world.log[-1] == b"\x90"


def test_validate_only_checks_and_changes_nothing(world: World) -> None:
    found = alter(
        world, alteration(ADA, producer_byte_rate=5.0), alteration(APP, what=1.0), validate_only=True
    )
    assert [outcome.error for outcome in found] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert not world.image.quotas


def test_entity_changes_completely_or_not_at_all(world: World) -> None:
    found = alter(
        world,
        alteration(ADA, producer_byte_rate=5.0, what=1.0),
        alteration(APP, producer_byte_rate=5.0),
    )
    assert [outcome.error for outcome in found] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert set(world.image.quotas) == {APP}


def test_entity_that_is_named_twice_is_not_changed(world: World) -> None:
    found = alter(
        world, alteration(BOTH, producer_byte_rate=5.0), alteration(BOTH[::-1], producer_byte_rate=6.0)
    )
    assert [(outcome.entity, outcome.error) for outcome in found] == [(BOTH, ErrorCode.INVALID_REQUEST)]
    twice = c.QuotaAlteration(entity=ADA, changes=(c.QuotaChange(key="producer_byte_rate", value=1.0),) * 2)
    assert alter(world, twice)[0].error == ErrorCode.INVALID_REQUEST
    assert not world.image.quotas


@pytest.mark.parametrize(
    "entity",
    [
        (),
        (("user", ""),),
        (("group", "g"),),
        (("ip", "localhost"),),
        (("ip", "127.1"),),
        (("ip", "127.0.0.1"), ("user", "ada")),
    ],
)
def test_invalid_entities_are_refused(world: World, entity: Entity) -> None:
    assert (
        alter(world, alteration(entity, connection_creation_rate=1.0))[0].error == ErrorCode.INVALID_REQUEST
    )


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (ADA, "producer_byte_rate", 0.0),
        (ADA, "producer_byte_rate", -1.0),
        (ADA, "producer_byte_rate", 1.5),
        (ADA, "consumer_byte_rate", 1e30),
        (ADA, "consumer_byte_rate", math.inf),
        (ADA, "request_percentage", math.nan),
        (ADA, "controller_mutation_rate", -0.5),
        (ADA, "connection_creation_rate", 1.0),
        ((("ip", None),), "connection_creation_rate", 2.0**31),
        ((("ip", "::1"),), "producer_byte_rate", 1.0),
    ],
)
def test_invalid_values_are_refused(world: World, entity: Entity, key: str, value: float) -> None:
    assert alter(world, alteration(entity, **{key: value}))[0].error == ErrorCode.INVALID_REQUEST
    assert not world.image.quotas


def test_defaults_fractions_and_addresses(world: World) -> None:
    found = alter(
        world,
        alteration((("user", None), ("client-id", None)), request_percentage=0.5),
        alteration(ADA, request_percentage=math.inf, controller_mutation_rate=0.1),
        alteration((("ip", None),), connection_creation_rate=9.0),
        alteration((("ip", "::1"),), connection_creation_rate=9.0),
    )
    assert {outcome.error for outcome in found} == {ErrorCode.NONE}
    assert decode_image(encode_image(world.image)) == world.image


def test_number_of_entities_is_limited() -> None:
    value = Map({"producer_byte_rate": 5.0})
    others = {(("user", str(n)),): value for n in range(quotas.ENTITIES_MAX - 1)}
    full = ClusterImage(cluster_id="c", quotas=Map({ADA: value, **others}))
    wanted = (alteration(APP, producer_byte_rate=5.0), alteration(ADA, producer_byte_rate=6.0))
    decision = quotas.alter(full, c.AlterQuotas(alterations=wanted))
    found = [outcome.error for outcome in decision.reply.entities]
    assert found == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]


def test_length_of_entity_names_is_limited(world: World) -> None:
    longest = "x" * QUOTA_NAME_MAX
    for kind in ("user", "client-id"):
        assert alter(world, alteration(((kind, longest),), producer_byte_rate=5.0))[0].error == ErrorCode.NONE
        found = alter(world, alteration(((kind, longest + "x"),), producer_byte_rate=5.0))
        assert found[0].error == ErrorCode.POLICY_VIOLATION
    assert {dict(entity).popitem()[1] for entity in world.image.quotas} == {longest}


def test_snapshot_of_a_newer_version_is_refused(world: World) -> None:
    alter(world, alteration(ADA, producer_byte_rate=5.0))
    data = bytearray(encode_image(world.image))
    assert data[1] == 2
    data[1] = VERSION + 1
    with pytest.raises(UnknownSnapshotVersion):
        decode_image(bytes(data))
