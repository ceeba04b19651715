"""Values of settings that are stored elsewhere, by the references of Kafka's configuration providers
(KIP-297, KIP-421, KIP-993): `${file:/path/of.properties:key}`, `${env:VARIABLE}`, `${directory:/path:file}`.

They keep secrets out of settings files and arguments. References are replaced once, when a node starts, and
only in its own settings: a setting that a client changes stays as it is, so no client can read a file.
Messages name the reference, never the value. Called by the settings' sources.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tierlog.config.definitions import InvalidSetting

_REFERENCE = re.compile(r"\$\{(?P<provider>file|env|directory):(?P<path>[^:}]*)(?::(?P<key>[^}]*))?\}")
SECRET_BYTES_MAX = 1 << 20
"""Maximum size of a file with values."""


def resolved(texts: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Settings with each reference replaced by its value. Raises InvalidSetting."""
    return {name: _resolved(name, text, environment) for name, text in texts.items()}


def _resolved(name: str, text: str, environment: Mapping[str, str]) -> str:
    def value_of(reference: re.Match[str]) -> str:
        try:
            return _PROVIDERS[reference["provider"]](reference["path"], reference["key"], environment)
        except (OSError, ValueError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else str(failure)
            raise InvalidSetting(f"{name}: {reference[0]} has no value: {reason}") from None

    return _REFERENCE.sub(value_of, text)


def referenced_files(text: str) -> list[Path]:
    """Files that the references in a setting's text read."""
    return [
        Path(found["path"]) / (found["key"] or "")
        if found["provider"] == "directory"
        else Path(found["path"])
        for found in _REFERENCE.finditer(text)
        if found["provider"] != "env"
    ]


def properties_of(text: str) -> dict[str, str]:
    """Lines `key=value` of a Java properties file. Spaces around keys and values do not count; lines that
    begin with # or ! are comments. Raises ValueError for a line without `=`."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise ValueError(f"line {number} is not key=value")
        found[key.strip()] = value.strip()
    return found


def _from_environment(variable: str, key: str | None, environment: Mapping[str, str]) -> str:
    if key is not None:
        raise ValueError("write ${env:VARIABLE}")
    if variable not in environment:
        raise ValueError(f"the environment has no variable {variable}")
    return environment[variable]


def _from_file(path: str, key: str | None, _: Mapping[str, str]) -> str:
    if key is None:
        raise ValueError("write ${file:/path/of.properties:key}")
    values = properties_of(_read(Path(path)))
    if key not in values:
        raise ValueError(f"the file has no line {key}=...")
    return values[key]


def _from_directory(path: str, key: str | None, _: Mapping[str, str]) -> str:
    """The whole content of a file, as Kubernetes mounts secrets, without the newline at its end."""
    if not key or "/" in key:
        raise ValueError("write ${directory:/path:file}")
    return _read(Path(path, key)).removesuffix("\n")


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(SECRET_BYTES_MAX + 1)
    if len(data) > SECRET_BYTES_MAX:
        raise ValueError(f"the file has more than {SECRET_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None


_PROVIDERS: Mapping[str, Callable[[str, str | None, Mapping[str, str]], str]] = {
    "env": _from_environment,
    "file": _from_file,
    "directory": _from_directory,
}
