"""The commands of the page about the REST gateway work."""

from pathlib import Path

from docs_pages import run_page
from rest_process import RestProcess

from tierlog.testing import TierlogBroker


def test_commands_of_the_page_work(tierlog_broker: TierlogBroker, tmp_path: Path) -> None:
    with RestProcess(tmp_path, tierlog_broker.bootstrap) as rest:
        assert run_page("docs/howto/rest.md", tierlog_broker, "rest", rest_url=rest.url) >= 9
        *rows, end = rest.get("/v1/topics/flights/consume?value_format=string").body
        assert (len(rows), end["reason"]) == (4, "end")
