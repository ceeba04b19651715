"""Instance metadata of a test's host: `python instance_metadata.py ADDRESS INSTANCE`, at 169.254.169.254.

Only with a token (IMDSv2), as the module requires of its instances.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

TOKEN = "token-of-a-test"


class Metadata(BaseHTTPRequestHandler):
    values: dict[str, str]

    def do_PUT(self) -> None:
        self._answer(TOKEN if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self.send_error(401)
            return
        self._answer(self.values.get(self.path.removeprefix("/latest/meta-data/")))

    def _answer(self, text: str | None) -> None:
        if text is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def main(address: str, instance_id: str) -> None:
    role = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": "emulated",
        "SecretAccessKey": "emulated",
        "Token": "emulated",
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Expiration": "2100-01-01T00:00:00Z",
    }
    Metadata.values = {
        "local-ipv4": address,
        "instance-id": instance_id,
        "iam/security-credentials/": "tierlog",
        "iam/security-credentials/tierlog": json.dumps(role),
    }
    HTTPServer(("169.254.169.254", 80), Metadata).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
