"""Settings shared by the tests of the metrics."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from threadpoolctl import threadpool_limits

# A busy machine must not fail a test, and a failure must come back on the next run.
settings.register_profile("metrics", deadline=None, derandomize=True)
settings.load_profile("metrics")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tables this small are slower with threads, which mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)
