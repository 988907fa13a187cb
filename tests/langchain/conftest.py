"""Makes `_models` importable: under `--import-mode=importlib` a test cannot import its neighbour."""

import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "loopguard_langchain_models"

if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name("_models.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module  # pydantic looks its models' module up
    spec.loader.exec_module(module)


@pytest.fixture(autouse=True)
def no_config_file(tmp_path, monkeypatch):
    """A guard made from None must not find a policy of somebody else's."""
    monkeypatch.chdir(tmp_path)
