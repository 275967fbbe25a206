import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():  # type: ignore[no-untyped-def]
    """As in a worker; and threads that wait for each other crawl on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
