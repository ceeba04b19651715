"""Token of an OAuth issuer, for clients that leave the request to the application."""

import json
import urllib.request


def issued_token(endpoint: str) -> str:
    request = urllib.request.Request(endpoint, b"grant_type=client_credentials", method="POST")
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["access_token"])
