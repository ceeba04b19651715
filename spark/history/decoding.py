"""Decodes parts of segments. Apart from `snapshot`, because the driver plans without the compiled loops."""

from collections.abc import Collection, Iterator

from tierlog.records.columnar import AbortedRange, Columns, decode_columns
from tierlog.records.errors import RecordsError
from tierlog.spark.history.plan import Part
from tierlog.tiering.object_store import CorruptObject


def decode_part(part: Part, content: bytes, wanted: Collection[str]) -> Iterator[Columns]:
    """The wanted columns of the committed records of a part, in groups that are not empty. `content`: from
    `read_split`, which has compared it with the part's checksum. Raises CorruptObject."""
    try:
        for columns in decode_columns(
            content,
            wanted,
            first_offset=part.offsets.start,
            end_offset=part.offsets.end,
            aborted=[AbortedRange(*line[:3]) for line in part.aborted],
            is_checked=part.crc32c is not None,
        ):
            if columns.rows:
                yield columns
    except RecordsError as error:
        raise CorruptObject(f"{part.place}: {error}") from error
