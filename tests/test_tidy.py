"""Rules of this repository that no linter checks: sizes, docstrings, forbidden words, numbered decisions."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("broker", "metadata", "tiering", "spark", "cli", "src")
FILE_LINES_MAX = 600
LONG_FILES = {
    "broker/gateway/catalogue.py": "one table of the metrics, with their texts",
    "broker/remote/remote_log_manager.py": "the job of a partition, and what wakes and shows it",
    "broker/storage/log_dir.py": "one directory, and the file port through which it notices its failure",
    "metadata/controller/commands.py": "one table of commands and replies",
    "metadata/raft/core.py": "one state machine, whose roles share their state",
    "tests/integration/test_cli_bad_invocations.py": "one table of the invocations of all commands",
    "tiering/remote_log.py": "reads of remote records, which share the walk of the manifest",
}
"""Files of up to LONG_FILE_LINES_MAX lines, and why they are not divided."""

LONG_FILE_LINES_MAX = 750
FUNCTION_LINES_MAX = 70
GENERATED = ("src/tierlog/protocol/messages/",)
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".lock",
    ".txt",
    ".yml",
    ".yaml",
    ".xml",
    ".sh",
    ".java",
    ".json",
    ".cfg",
    "",
}
FOREIGN_WORDS = re.compile(
    r"(?:/root/|/home/\w+/|/tmp/w/|/work/\w+)|pypi\.(?:org|python)|files\.pythonhosted|index[-_]url=|repo1?\.maven|proxy\.golang"
)
"""Paths of one machine and addresses of registries, which belong to the machine's own configuration."""

BAD_HABITS = re.compile(
    r"\b(?:[Ww]ho|[Ww]hom|[Ww]hoever|[Nn]obody|[Ss]omebody)\b"
    r"|(?:^|[.:;]\s+)Of (?=[a-z])"
    r"|\b(?:[Tt]old|[Aa]new|[Hh]ence|[Jj]udge[sd]?|[Ll]ately|[Pp]atience|in vain|for ever)\b"
    r"|\bgo(?:es)? on\b(?! to\b)|\bmeanwhile[.;]|\bin line\b"
    r"|\blies (?:in|on|at|under|there|beside|next|within|outside|above)\b"
    r"|\berror (?:code )?\d|(?<![Ee]xit )\bcode \d"
)
"""Words for people that are said of things; sentences that begin with "Of"; words for which there are plain
ones: "told", "anew", "hence", "judge", "lately" (recently), "patience" (timeout), "in vain" (without effect),
"for ever" (forever), "go on" (continue), "meanwhile" at the end, "lies in" (is in), "in line" (in a queue);
error codes as numbers.
"""

BAD_NAMES = {
    "asked": "requested, request",
    "heir": "leadership transfer target",
    "housekeeper": "remote storage cleaner",
    "patience": "timeout",
    "pump": "channel, connection",
    "settle": "stabilize, wait until …",
    "settled": "flushed, synced, …",
}
"""Words that must not be part of a name, and what to say instead: Kafka's or Raft's word, or a plain one."""

HIDDEN_SUBJECTS = re.compile(
    r"\S  # (?:of|that|which|whose) .*"
    r"|\"\"\"(?:What|Where) (?=[a-z]).*|(?:(?<!#)#|\.) What (?=[a-z])[^?\n]*$|[.;] Else\b.*",
    re.M,
)
"""A comment that continues the name before it ("number: int  # of that entry"), a sentence whose subject is a
clause ("What the leader knows …", "Where it begins"), and "Else" for "Otherwise". A reader has to add the
subject.
"""

PLAIN_EXCEPTIONS = {
    "operator who": "a person",
    "user who": "a person",
    "told apart": "the plain word for what cannot be distinguished",
    "--user nobody": "the name of a user",
}
"""Phrases that are left out of the search, and why."""

CHANGELOG_VERBS = {
    "Add",
    "Change",
    "Fix",
    "Halve",
    "Limit",
    "Raise",
    "Reduce",
    "Refuse",
    "Remove",
    "Rename",
    "Replace",
    "Set",
    "Stop",
}
"""First words of changelog entries: what was done, or what an operator has to do for an upgrade."""


def tracked() -> list[Path]:
    """Files that git tracks or would track, without links and ignored files."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    files = [ROOT / name for name in listing.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


FILES = tracked()
PYTHON = [
    file
    for file in FILES
    if file.suffix == ".py" and not relative(file).startswith(GENERATED) and "golden" not in file.parts
]
PRODUCT = [file for file in PYTHON if relative(file).split("/")[0] in PACKAGES]
PAGES = [
    file
    for file in FILES
    if file.suffix in {".md", ".yml", ".yaml", ".toml", ".sh", ".service", ""}
    and file.name != "LICENSE"
    and not relative(file).startswith("tests/golden/")
]
"""Prose outside of modules: pages, decisions, the changelog, and the comments of scripts and settings."""
TESTS = [file for file in PYTHON if relative(file).startswith("tests/")]


def offenders(files: list[Path], rule: Callable[[str], Iterable[object]]) -> list[str]:
    """`file:finding` for each finding of the rule in the files' text."""
    return [f"{relative(file)}:{found}" for file in files for found in rule(file.read_text(encoding="utf-8"))]


def test_files_are_short() -> None:
    lengths = {relative(file): file.read_text(encoding="utf-8").count("\n") for file in PYTHON}
    too_long = {
        name: length
        for name, length in lengths.items()
        if length > (LONG_FILE_LINES_MAX if name in LONG_FILES else FILE_LINES_MAX)
    }
    assert too_long == {}
    assert {name for name in LONG_FILES if lengths[name] <= FILE_LINES_MAX} == set()


def test_functions_are_short() -> None:
    def rule(text: str) -> list[str]:
        return [
            f"{node.lineno} {node.name}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
        ]

    assert offenders(PYTHON, rule) == []


def test_every_module_has_a_docstring() -> None:
    def rule(text: str) -> list[str]:
        return [] if ast.get_docstring(ast.parse(text)) else ["no module docstring"]

    assert offenders(PYTHON, rule) == []


def test_core_does_not_import_its_drivers() -> None:
    """Checked here because import-linter would need a list of all drivers."""
    cores = [file for file in PRODUCT if file.parent.name == "core"]
    assert cores
    for file in cores:
        package = ".".join(file.parents[1].relative_to(ROOT).parts)
        imported = re.findall(rf"^ *from tierlog\.{package}(?!\.core\b).*", file.read_text(), re.M)
        assert imported == [], relative(file)


def test_product_has_no_assert_and_no_todo() -> None:
    """`python -O` strips assert statements; unfinished work belongs in an issue."""

    def rule(text: str) -> list[str]:
        asserts = []
        if re.search(r"^\s*assert\b", text, re.M):  # in few files, and there mostly in text
            tree = ast.parse(text)
            asserts = [f"{node.lineno} assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        return asserts + [f"{word}" for word in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text)]

    assert offenders(PRODUCT, rule) == []


def test_tests_neither_sleep_nor_mock() -> None:
    """Sleeping hides races, a mock tests itself. (Another program's start, in tests/support, is no event; and
    in the simulator nothing sleeps: its time is virtual.)
    """
    forbidden = re.compile(r"time\.sleep\(|unittest\.mock|\bMagicMock\b|asyncio\.sleep\((?!0\))")
    files = [
        file
        for file in TESTS
        if file != Path(__file__)
        and not relative(file).startswith(
            ("tests/bench/", "tests/soak/", "tests/support/", "tests/simulation/", "tests/chaos/havoc/")
        )
    ]
    assert offenders(files, forbidden.findall) == []


MAY_SKIP = (
    "tests/clients/",
    "tests/docs/",
    "tests/support/aws_hosts.py",
    "tests/support/mounts.py",
    "tests/support/terraform_cli.py",
)
"""Files whose tests need a client or a mount that may be missing, and say so."""


def test_no_test_is_skipped_silently() -> None:
    """Only tests that need a missing client or a forbidden mount may be skipped."""
    forbidden = re.compile(r"pytest\.mark\.(?:skip|xfail)\b|pytest\.skip\(")
    files = [file for file in TESTS if file != Path(__file__) and not relative(file).startswith(MAY_SKIP)]
    assert offenders(files, forbidden.findall) == []


def prose(text: str) -> Iterator[str]:
    """Docstrings, messages and comments of a module, and the names that it defines as words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name.replace("_", " ")
    yield from re.findall(r"(?:^|\s)#(.*)", text)


def bad_habits(passages: Iterable[str]) -> list[str]:
    """Each bad habit with the words around it."""
    exceptions = re.compile("|".join(map(re.escape, PLAIN_EXCEPTIONS)))
    plain = [exceptions.sub("", " ".join(passage.split())) for passage in passages]
    return [
        passage[max(0, found.start() - 40) : found.end() + 40]
        for passage in plain
        for found in BAD_HABITS.finditer(passage)
    ]


def test_prose_of_modules_is_plain_english() -> None:
    # most files have none of the words anywhere, and need not be parsed
    suspicious = re.compile(BAD_HABITS.pattern.replace(r"(?:^|[.:;]\s+)Of", "Of"))

    def rule(text: str) -> list[str]:
        return bad_habits(prose(text)) if suspicious.search(text.replace("_", " ")) else []

    assert offenders([file for file in PYTHON if file != Path(__file__)], rule) == []


def test_sentences_of_modules_name_their_subject() -> None:
    assert offenders([file for file in PYTHON if file != Path(__file__)], HIDDEN_SUBJECTS.findall) == []


def test_sentences_of_pages_name_their_subject() -> None:
    clause = re.compile(r"(?:^(?:- |\d+\. )?|[.:] )What (?=[a-z])(?![^.\n]*\?).*", re.M)
    assert offenders([file for file in PAGES if file.suffix == ".md"], clause.findall) == []


def test_names_use_the_words_of_the_field() -> None:
    suspicious = re.compile("|".join(BAD_NAMES), re.I)

    def rule(text: str) -> list[str]:
        if not suspicious.search(text):
            return []  # most files need not be parsed
        return [
            f"{name}: {BAD_NAMES[word]}"
            for name in sorted(set(defined_names(ast.parse(text))))
            for word in name.lower().split("_")
            if word in BAD_NAMES and not name.startswith("test_")  # names of tests are sentences
        ]

    assert offenders(PYTHON, rule) == []


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, parameters, variables and attributes that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_prose_of_pages_and_scripts_is_plain_english() -> None:
    def rule(text: str) -> list[str]:
        text = re.sub(r"^\s*#+", "", text, flags=re.M)  # headings, comments of scripts
        return bad_habits(re.split(r"\n\s*\n|\n\s*[-|] ", text))

    assert offenders(PAGES, rule) == []


def test_changelog_entries_start_with_a_verb() -> None:
    entries = re.findall(r"^- (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert entries
    assert sorted(set(entries) - CHANGELOG_VERBS) == []


def test_no_machine_paths_and_no_registry_addresses() -> None:
    files = [file for file in FILES if file.suffix in TEXT_SUFFIXES and file != Path(__file__)]
    assert offenders(files, FOREIGN_WORDS.findall) == []


def test_make_help_fits_a_screen() -> None:
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert "make check" in shown.stdout
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_decisions_are_numbered_without_gap() -> None:
    numbers = sorted(int(file.name[:4]) for file in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("heading", ["Status: ", "## Context", "## Decision", "## Rejected"])
def test_decisions_have_their_sections(heading: str) -> None:
    assert [
        file.name for file in (ROOT / "docs/adr").glob("[0-9]*.md") if heading not in file.read_text()
    ] == []


def test_test_files_have_unique_names() -> None:
    """pytest's importlib mode needs no packages, but reports by file name are ambiguous otherwise."""
    names = [file.name for file in TESTS if file.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
