"""The drivers of all three SDKs, whichever directory a test lives in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from loopguard_core.testing.conformance import Driver

_TESTS = Path(__file__).parents[1]
_FILES = {  # the names are those that the directories' own conftest files use
    "loopguard_openai_agents_drivers": "openai_agents/_drivers.py",
    "loopguard_llama_index_clients": "llama_index/_clients.py",
    "loopguard_llama_index_drivers": "llama_index/_drivers.py",
    "loopguard_llama_index_workflow_drivers": "llama_index/_workflow_driver.py",
}
SDKS = ("langchain", "openai_agents", "llama_index")
"""By the names `Surface.adapter` has."""


def load(name: str) -> ModuleType:
    """One module of drivers; its SDK must be installed."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _TESTS / _FILES[name])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # pydantic looks its models' module up
        spec.loader.exec_module(module)
    return sys.modules[name]


def drivers() -> dict[str, list[Driver]]:
    """Every driver, by SDK."""
    import langchain_drivers

    openai_agents = load("loopguard_openai_agents_drivers").DRIVERS
    load("loopguard_llama_index_clients")
    llama_index = load("loopguard_llama_index_drivers").DRIVERS
    workflows = load("loopguard_llama_index_workflow_drivers").WORKFLOW_DRIVERS
    return dict(zip(SDKS, (langchain_drivers.DRIVERS, openai_agents, [*llama_index, *workflows]), strict=True))


def streaming() -> dict[str, Driver]:
    """One driver of each SDK: the surface that can do everything, streamed."""
    wanted = {"langchain": "astream", "openai_agents": "run_streamed", "llama_index": "FunctionAgent, streaming"}
    return {
        sdk: next(driver for driver in found if driver.mode == wanted[sdk] and "text" in driver.surface.capabilities)
        for sdk, found in drivers().items()
    }
