"""What no test may leave to the next one in its process, whatever directory it stands in."""

import sys
from collections.abc import Iterator

import pytest


def handlers() -> list[object]:
    """LlamaIndex's root dispatcher belongs to the process: its handlers, if that SDK is loaded at all."""
    module = sys.modules.get("llama_index_instrumentation")
    return [] if module is None else module.get_dispatcher().event_handlers


@pytest.fixture(autouse=True)
def handlers_of_one_test() -> Iterator[None]:
    """A handler that a test adds there would watch the runs of every test after it."""
    before = list(handlers())
    yield
    handlers()[:] = before
