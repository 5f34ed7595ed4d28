"""Settings shared by the tests of the theory."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

# A busy machine must not fail a test, and a failure must come back on the next run.
settings.register_profile("theory", deadline=None, derandomize=True)
settings.load_profile("theory")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices this small are slower with threads, which mostly wait for each other."""
    with threadpool_limits(1):
        yield
