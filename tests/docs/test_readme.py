"""Runs the tests that the README shows, as another project would."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_tests_in_the_readme_pass(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    shown = [block for block in blocks if "def test_" in block]
    assert len(shown) == 2
    for number, block in enumerate(shown):
        (tmp_path / f"test_shown_{number}.py").write_text(block, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", tmp_path], cwd=tmp_path, capture_output=True, check=False
    )
    assert b"2 passed" in ended.stdout, ended.stdout.decode() + ended.stderr.decode()
