"""YAML for files and output of commands: writes JSON documents, and reads mappings of strings (PyYAML,
ADR 0052)."""

from typing import Any

import yaml

Mappings = dict[str, "str | Mappings"]

DEPTH_MAX = 8
"""Mappings within each other. An alias could make a file of few lines endless."""


class InvalidYaml(ValueError):
    """The message names the line."""


def yaml_text(document: Any) -> str:
    """A document of mappings, lists, strings, numbers, booleans and None as YAML."""
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def read_mappings(text: str) -> Mappings:
    """Mappings of strings and mappings: a value is a string, whatever YAML takes it for. Raises
    InvalidYaml."""
    try:
        top = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidYaml(f"line {mark.line + 1 if mark else 1}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"line 1: {error}") from None
    except RecursionError:
        raise InvalidYaml("line 1: its parts are too deep within each other") from None
    return {} if top is None else _mapping(top, DEPTH_MAX)


def _mapping(node: yaml.Node, depth_left: int) -> Mappings:
    if not isinstance(node, yaml.MappingNode) or not depth_left:
        raise InvalidYaml(f"{_line(node)}: expected `key: value`")
    mapping: Mappings = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidYaml(f"{_line(key)}: expected a name before the colon")
        if key.value in mapping:
            raise InvalidYaml(f"{_line(key)}: {key.value} is there twice")
        is_text = isinstance(value, yaml.ScalarNode)
        mapping[key.value] = value.value if is_text else _mapping(value, depth_left - 1)
    return mapping


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
