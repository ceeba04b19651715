"""kcat_round_trip.py KCAT SETTINGS TOPIC GROUP VALUE: produces a record and consumes it in a group, by kcat.

Prints "ok", or the name of the first error. SETTINGS: a file of kcat. Without VALUE it only consumes.
"""

import subprocess
import sys

LIMIT_S = 30.0
NAMES = {
    "Topic authorization failed": "TOPIC_AUTHORIZATION_FAILED",
    "Group authorization failed": "GROUP_AUTHORIZATION_FAILED",
    "SASL authentication error": "_AUTHENTICATION",
}


def main(kcat: str, settings: str, topic: str, group: str, value: str) -> str:
    command = [kcat, "-F", settings]
    if value:
        produced = run([*command, "-P", "-t", topic], value)
        if produced.returncode:
            return error_of(produced.stderr)
    consumed = run([*command, "-X", "auto.offset.reset=earliest", "-e", "-G", group, topic])
    return "ok" if value in consumed.stdout.split() else error_of(consumed.stderr)


def run(command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def error_of(text: str) -> str:
    return next((name for words, name in NAMES.items() if words in text), text)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
