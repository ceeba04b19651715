"""Every setting is read by some code, or documented as without effect."""

import re
from pathlib import Path

import pytest

from tierlog.config.definitions import Setting
from tierlog.config.node import NODE_SETTINGS
from tierlog.config.topic import NO_EFFECT_YET, TOPIC_SETTINGS
from tierlog.config.topic_defaults import TOPIC_DEFAULTS

ROOT = Path(__file__).parents[3]
ATTRIBUTES_READ = {
    name
    for package in ("broker", "metadata", "tiering", "src/tierlog/config")
    for file in (ROOT / package).rglob("*.py")
    for name in re.findall(r"\.([a-z_]+)\b", file.read_text(encoding="utf-8"))
}
NODE = [setting for name, setting in NODE_SETTINGS.items() if name not in TOPIC_DEFAULTS]


@pytest.mark.parametrize("setting", [*NODE, *TOPIC_SETTINGS.values()], ids=lambda setting: setting.name)
def test_every_setting_is_used_or_documented_as_without_effect(setting: Setting) -> None:
    assert setting.name.replace(".", "_") in ATTRIBUTES_READ or setting.doc.endswith(NO_EFFECT_YET)


def test_topic_setting_and_its_node_default_agree_on_having_no_effect() -> None:
    for name, topic_name in TOPIC_DEFAULTS.items():
        has_no_effect = TOPIC_SETTINGS[topic_name].doc.endswith(NO_EFFECT_YET)
        assert NODE_SETTINGS[name].doc.endswith(NO_EFFECT_YET) == has_no_effect
