"""YAML of settings: values stay strings, and a file that means anything else is refused with its line."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tierlog.cli.yaml_text import InvalidYaml, read_mappings, yaml_text

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["true", "No", "1_000", "~", "-", "a: b", "x #y", "2026-11-29"]
)
SCALARS = TEXTS | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SETTINGS = st.recursive(TEXTS, lambda inner: st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)


@given(DOCUMENTS)
def test_a_document_is_read_back(document: object) -> None:
    assert yaml.safe_load(yaml_text(document)) == document


@given(st.dictionaries(TEXTS, SETTINGS, min_size=1, max_size=3))
def test_settings_are_read_back_as_strings(document: dict[str, object]) -> None:
    assert read_mappings(yaml_text(document)) == document


def test_a_file_by_hand_has_strings_for_values() -> None:
    text = """---
# all
cluster:   # here
  a.b: x y   # why
  'it''s': -1x
  on: yes

  url: http://h/#f
brokers:
    1:
      c: d
"""
    assert read_mappings(text) == {
        "cluster": {"a.b": "x y", "it's": "-1x", "on": "yes", "url": "http://h/#f"},
        "brokers": {"1": {"c": "d"}},
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1]", 1),
        ("a:\n  - b", 2),
        ("a:\n\tb: 1", 2),
        ("a:\n    b: 1\n  c: 2", 3),
        ("a: 1\na: 2", 2),
        ("a: 1\n  b: 2", 2),
        ("just text", 1),
        ("a: b: c", 1),
        ('a: "\\q"', 1),
        ("? [a]\n: b", 1),
        ("a: &x\n  b: *x", 1),
        ("a: \x07", 1),
    ],
)
def test_other_yaml_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InvalidYaml, match=f"line {line}: "):
        read_mappings(text)


def test_aliases_cannot_make_a_file_endless() -> None:
    lines = ["a0: &a0 {x: y}", *(f"a{n}: &a{n} {{l: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 40))]
    with pytest.raises(InvalidYaml, match="expected `key: value`"):
        read_mappings("\n".join(lines))
