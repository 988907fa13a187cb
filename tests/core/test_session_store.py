"""A run that another worker resumes goes on counting."""

from __future__ import annotations

import pytest

from loopguard_core import LoopGuard, LoopGuardError, Session, ToolCall, Usage
from loopguard_core.session_store import SessionStore, _Memory, open_session_store

CALL = ToolCall("1", "tool", {"n": 1})


def looped(session: Session, rounds: int) -> Session:
    for _ in range(rounds):
        session.before_model_call()
        session.after_model_call(usage=Usage(cost="0.1"))
        session.begin_round([CALL])
        session.record_result("1", "same")
    return session


def test_another_worker_goes_on() -> None:
    store = open_session_store()
    assert store.load("run") is None
    store.save(looped(LoopGuard().session("run"), 2))
    session = LoopGuard().session("run", state=store.load("run"))
    assert (session.turns, str(session.usage.cost)) == (2, "0.2")
    assert session.begin_round([CALL])[0].blocked
    assert store.delete("run")
    assert not store.delete("run")
    assert store.load("run") is None


async def test_the_same_on_an_event_loop() -> None:
    with open_session_store() as store:
        await store.asave(looped(LoopGuard().session("run\udcff"), 2))
        assert (await store.aload("run\udcff"))["messages"] == 2


def test_what_is_damaged_resets_nothing_silently() -> None:
    texts = _Memory()
    store = SessionStore(texts)
    store.save(LoopGuard().session("run"))
    (name,) = texts._kept
    texts.put(name, '{"version"', 1000)
    guard = LoopGuard()
    guard.session("run", state=store.load("run"))
    assert guard.faults.counts == {"saved state": 1}


def test_in_memory_sessions_expire_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    store = SessionStore(_Memory(lambda: now[0]), ttl=10)
    guard = LoopGuard()
    store.save(guard.session("a"))
    now[0] = 9.9
    assert store.load("a") is not None
    now[0] = 10
    assert store.load("a") is None
    monkeypatch.setattr("loopguard_core.session_store.MAX_IN_MEMORY", 2)
    for name in "bcd":
        store.save(guard.session(name))
    assert [store.load(name) is not None for name in "bcd"] == [False, True, True]


@pytest.mark.parametrize("url", ["sqlite:///a.db", "a.db", "postgres://u:hunter2@h"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(LoopGuardError, match="no address of a session store") as caught:
        open_session_store(url)
    assert "hunter2" not in str(caught.value)
