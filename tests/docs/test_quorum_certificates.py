"""Checks that nodes can use the certificates made by docs/howto/quorum-tls.md."""

import subprocess
from pathlib import Path

from docs_pages import blocks

from tierlog.metadata.quorum.tls import TlsFiles

PAGE = "docs/howto/quorum-tls.md"


def test_certificates_of_the_page_work(tmp_path: Path) -> None:
    for block in blocks(PAGE):
        for program in block.programs():
            ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, f"{program}\n{ended.stderr}"
    files = TlsFiles(certificate=tmp_path / "1.crt", key=tmp_path / "1.key", ca=tmp_path / "ca.crt")
    assert files.server().cert_store_stats()["x509_ca"] == files.client().cert_store_stats()["x509_ca"] == 1
