"""What `tests/conftest.py` promises, tried in a pytest of its own: whoever runs the tests may have set anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

ENVIRONMENT = """
import os
import pytest
from loopguard_core import LoopGuard

MADE_AT_IMPORT = LoopGuard({"limits": {"turns": 3}})

@pytest.fixture(scope="session")
def made_once():
    return LoopGuard({})

def test_nobodys_policy(made_once, monkeypatch):
    for guard in (MADE_AT_IMPORT, made_once, LoopGuard(None)):
        assert guard.enabled
        assert guard.policy.preset == "default"
    assert os.environ["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    assert not LoopGuard({}).enabled

def test_what_a_test_sets_is_its_own():
    assert LoopGuard({}).enabled
"""

HANDLERS = """
def test_a_handler_of_one_test():
    from llama_index_instrumentation import get_dispatcher
    from llama_index_instrumentation.event_handlers import BaseEventHandler

    class Mine(BaseEventHandler):
        def handle(self, event, **kwargs):
            pass

    assert [type(each).__name__ for each in get_dispatcher().event_handlers] == ["NullEventHandler"]
    get_dispatcher().add_event_handler(Mine())

def test_is_gone_in_the_next_and_llama_index_has_its_own():
    from llama_index_instrumentation import get_dispatcher
    assert [type(each).__name__ for each in get_dispatcher().event_handlers] == ["NullEventHandler"]
"""


PYTEST = "import os, sys, pytest; print(int(pytest.main(sys.argv[1:])), os.environ.get('LOOPGUARD_ENABLED'))"


def run_by_itself(where: Path, tests: str, **environment: str) -> str:
    """Run tests under a copy of our conftest; the last line that is printed."""
    (where / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (where / "test_it.py").write_text(tests, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, "-q", "-p", "no:cacheprovider", str(where)],
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    print(done.stdout)
    return done.stdout.splitlines()[-1]


def test_no_test_sees_the_policy_of_whoever_runs_it_which_stays_as_it_is(tmp_path: Path) -> None:
    where_none_is = str(tmp_path / "none.toml")
    last = run_by_itself(
        tmp_path, ENVIRONMENT, LOOPGUARD_ENABLED="0", LOOPGUARD_PRESET="observe", LOOPGUARD_CONFIG=where_none_is
    )
    assert last == "0 0"


def test_a_handler_goes_with_its_test_although_llama_index_came_with_it(tmp_path: Path) -> None:
    pytest.importorskip("llama_index_instrumentation", reason="needs pip install 'loopguard-core[llama-index]'")
    assert run_by_itself(tmp_path, HANDLERS) == "0 None"
