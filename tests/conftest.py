"""One fork server for the whole session: started by the first test that needs ranks, gone at the end."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _end_the_fork_server() -> Iterator[None]:
    yield
    from torchtpu_dist.testing import close_server

    close_server()
