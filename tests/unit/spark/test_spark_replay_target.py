"""The target of the replay job: what its arguments may not name."""

import pytest

from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed
from tierlog.spark.jobs.replay import _target_options, check_names


@pytest.mark.parametrize("option", ["topic=x", "Kafka.Bootstrap.Servers=h:1", "checkpointLocation=/tmp"])
def test_write_option_of_an_argument_is_refused(option: str) -> None:
    values = {"to_bootstrap": "h:9092", "compression": "zstd", "write_option": ["a=b", option]}
    with pytest.raises(InvalidArgument, match="--write-option must not set"):
        _target_options(values)


@pytest.mark.parametrize(
    ("to_topic", "topics"),
    [("{topic}", ["a"]), ("b", ["a", "b"]), ("{topic}.copy", ["a", "a.copy"])],
)
def test_topic_that_is_read_is_no_target(to_topic: str, topics: list[str]) -> None:
    with pytest.raises(JobFailed, match="which this replay reads"):
        check_names(to_topic, topics)


def test_other_topics_are_targets() -> None:
    check_names("{topic}.copy", ["a", "b"])
    check_names("c", ["a", "b"])
