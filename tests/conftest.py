"""What no test may find in its process, and what none may leave to the next one, whatever directory it stands in."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

OWN = "llama_index"
"""How the modules are called whose handlers LlamaIndex itself installs."""


# The same examples every time: what fails here fails for everybody. FUZZ=1 looks for new ones.
settings.register_profile("same", derandomize=True, database=None)
if not os.environ.get("FUZZ"):
    settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected: some modules make their guards as they are imported, some fixtures only once."""
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:  # whoever runs the tests has a policy
        environment.delenv(name)
    environment.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # traces go to the provider


def handlers() -> list[object] | None:
    """LlamaIndex's root dispatcher belongs to the process: its handlers; None while that SDK is not loaded."""
    module = sys.modules.get("llama_index_instrumentation")
    return None if module is None else module.get_dispatcher().event_handlers


@pytest.fixture(autouse=True)
def handlers_of_one_test() -> Iterator[None]:
    """A handler that a test adds there would watch the runs of every test after it."""
    found = handlers()
    before = None if found is None else list(found)
    yield
    now = handlers()
    if now is not None:
        now[:] = before if before is not None else [each for each in now if type(each).__module__.startswith(OWN)]
