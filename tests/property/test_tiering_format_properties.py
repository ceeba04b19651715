"""Any manifest and bundle survives a round trip; arbitrary bytes are refused and never decoded in part."""

import uuid

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.format.bundle import BundleError, IndexBundle, decode_bundle, encode_bundle
from tierlog.tiering.format.manifest import (
    ManifestError,
    ManifestPage,
    ManifestRoot,
    decode_page,
    decode_root,
    encode_page,
    encode_root,
    page_reference,
)

offsets = st.integers(0, 2**62)
crcs = st.integers(0, 2**32 - 1)


@st.composite
def histories(draw):
    """Entries without gaps, from a drawn start."""
    entries, base = [], draw(offsets)
    for length in draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=8)):
        entries.append(
            RemoteSegment(
                uuid=draw(st.uuids()),
                base_offset=base,
                last_offset=base + length - 1,
                leader_epochs=tuple(
                    draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), offsets), max_size=3))
                ),
                log_bytes=draw(st.integers(0, 2**40)),
                index_bytes=draw(st.integers(0, 2**30)),
                records=draw(st.integers(0, length)),
                first_timestamp=draw(st.integers(-1, 2**62)),
                max_timestamp=draw(st.integers(-1, 2**62)),
                has_transactions=draw(st.booleans()),
                has_aborts=draw(st.booleans()),
                log_crc32c=draw(crcs),
                index_crc32c=draw(crcs),
                leader_epoch=draw(st.integers(0, 2**31 - 1)),
            )
        )
        base += length
    return tuple(entries)


@given(histories(), st.data())
def test_manifests_round_trip(entries, data):
    cut = data.draw(st.integers(0, len(entries)))
    topic_id = data.draw(st.uuids())
    pages = ()
    if cut:
        page = ManifestPage(topic_id=topic_id, partition=1, entries=entries[:cut])
        encoded = encode_page(page)
        pages = (page_reference(uuid.UUID(int=5), page, encoded),)
        assert decode_page(encoded, pages[0]) == page
    root = ManifestRoot(
        topic_id=topic_id,
        partition=1,
        version=data.draw(offsets),
        metadata_index=data.draw(offsets),
        leader_epoch=1,
        log_start_offset=data.draw(offsets),
        pages=pages,
        entries=entries[cut:],
    )
    assert decode_root(encode_root(root)) == root


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), offsets), max_size=5),
)
def test_bundles_round_trip(index, snapshot, epochs):
    bundle = IndexBundle(
        offset_index=index,
        time_index=index[::-1],
        txn_index=b"",
        producer_snapshot=snapshot,
        leader_epochs=tuple(epochs),
    )
    assert decode_bundle(encode_bundle(bundle)) == bundle


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data):
    for decode, error in (
        (decode_root, ManifestError),
        (decode_page, ManifestError),
        (decode_bundle, BundleError),
    ):
        try:
            decode(data)
        except error:
            continue
        raise AssertionError(f"{decode.__name__} accepted {crc32c.crc32c(data):x}")
