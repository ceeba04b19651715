"""The limit on open files under random use: opens, closes, lost owners and reused descriptors."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import OpenFiles, SharedFile

FILES = 12
NUMBERS = st.integers(0, FILES - 1)


class Owner:
    def __init__(self) -> None:
        self.open_file: SharedFile | None = None


class Machine(RuleBasedStateMachine):
    @initialize(most=st.integers(1, 6))
    def begin(self, most: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.directory = Path(self._home.name)
        self.open_files = OpenFiles(most)
        self.files = OsFiles(self.open_files)
        self.owners = {number: Owner() for number in range(FILES)}
        self.held: list[tuple[int, FileSlice]] = []
        for number in range(FILES):
            (self.directory / str(number)).write_bytes(b"%04d" % number * 4)

    def teardown(self) -> None:
        if hasattr(self, "_home"):
            self._home.cleanup()

    def file(self, number: int) -> SharedFile:
        owner = self.owners[number]
        if owner.open_file is not None:
            owner.open_file.used = True
            return owner.open_file
        return self.open_files.open(owner, self.files, self.directory / str(number))

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        file = self.file(number)
        assert self.files.read_at(file.fd, 4, 0) == b"%04d" % number

    @rule(number=NUMBERS, unsynced=st.booleans())
    def write_or_sync(self, number: int, unsynced: bool) -> None:
        self.file(number).unsynced = unsynced

    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        self.held.append((number, FileSlice(self.file(number), 4, 8)))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.open_files.trim()

    @rule(number=NUMBERS)
    def release_owner(self, number: int) -> None:
        self.open_files.release(self.owners[number])

    @rule(number=NUMBERS)
    def lose(self, number: int) -> None:
        self.owners[number] = Owner()

    @invariant()
    def held_files_read_their_own_content(self) -> None:
        for number, part in getattr(self, "held", ()):
            assert part.read() == b"%04d" % number * 2

    @invariant()
    def descriptors_are_bounded(self) -> None:
        if not hasattr(self, "directory"):
            return
        links = [Path("/proc/self/fd", name) for name in OsFiles().list_directory(Path("/proc/self/fd"))]
        targets = [link.readlink() for link in links if link.is_symlink()]
        open_now = sum(target.is_relative_to(self.directory) for target in targets)
        assert open_now <= self.open_files.limit + len({id(part.file) for _, part in self.held})


TestOpenFiles = Machine.TestCase
TestOpenFiles.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
