"""Runs the test that the README shows, as another project would."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_test_in_the_readme_passes(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    [block] = [block for block in blocks if "def test_" in block]
    (tmp_path / "test_shown.py").write_text(block, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", tmp_path], cwd=tmp_path, capture_output=True, check=False
    )
    assert b"1 passed" in ended.stdout, ended.stdout.decode() + ended.stderr.decode()
