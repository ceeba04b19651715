"""Names that clients choose, in the output of commands: a terminal must obey and hide none of their
characters."""

import json

import pytest

from tierlog.cli.output import print_json, print_outcome, print_rows, printable

NAMES = {
    "\x1b[2Jgone": r"\x1b[2Jgone",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b31mred": r"\x9b31mred",
    "two\nlines\r": r"two\nlines\r",
    "\u202egpj.exe": r"\u202egpj.exe",
    "zero\u200bwidth": r"zero\u200bwidth",
    "half\ud83d": r"half\ud83d",
    "[/red]": "[/red]",
    "[bold]": "[bold]",
    'a,b c="ü" 😀': 'a,b c="ü" 😀',
}


@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_tables_escape_what_a_terminal_obeys(
    name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows({"group": "group", "members": "members"}, [{"group": name, "members": [name]}], title=name)
    text = capsys.readouterr().out
    assert text.count(shown) == 3
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_messages_escape_it_and_keep_their_lines(
    name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outcome(f"deleted {name}\nand no other", {}, as_json=False)
    text = capsys.readouterr().err
    assert text == f"deleted {printable(name, keep=chr(10))}\nand no other\n"
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_documents_escape_it_and_stay_equal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"group": name})
    text = capsys.readouterr().out
    assert json.loads(text) == {"group": name}
    assert text.rstrip("\n").isprintable()
