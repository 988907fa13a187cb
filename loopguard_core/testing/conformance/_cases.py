"""Running scripts through drivers."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from loopguard_core._guard import LoopGuard, PolicyLike
from loopguard_core.keys import KeyStatus, open_ledger
from loopguard_core.testing.conformance._driver import Agent, Conversation, Driver, ToolSpec
from loopguard_core.testing.conformance._record import Record, unanswered_calls
from loopguard_core.testing.conformance._script import STRONG, USUAL, Expected, Script
from loopguard_core.testing.conformance._scripts import SCRIPTS
from loopguard_core.testing.personas import ChatRequest, Persona, Reply
from loopguard_core.testing.scripted_server import ScriptedServer

ToolFunction = Callable[[Mapping[str, Any], int], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One script on one driver."""

    script: Script
    driver: Driver

    def __str__(self) -> str:
        """For test ids."""
        return f"{self.script.name}-{self.driver.surface.name}-{self.driver.mode}".replace(" ", "").replace(",", "-")

    def run(self, policy: PolicyLike = None) -> Record:
        """Run it and check it.

        Args:
            policy: What the guard is made from instead of the script's own policy, such as a path.

        Raises:
            AssertionError: The rule does not hold. The message begins with it.
        """
        record = self._record(policy)
        expected = Expected(self.driver.surface, self.driver.executes_stopped_round, self.driver.features)
        try:
            self.script.check(record, expected)
            if self.script.well_formed and "history" in expected.features and record.history is not None:
                open_calls = unanswered_calls(record.history)
                assert not open_calls, f"calls without exactly one answer: {open_calls}"
        except AssertionError as error:
            ladder, ends = record.recorder.ladder(), [end.reason for end in record.recorder.ends]
            facts = (
                f"ran {len(record.executions)}, {len(record.requests)} model calls, {ladder}, {ends}, {record.turns}"
            )
            raise AssertionError(f"{self.script.rule}\n{error}\n{facts}") from error
        return record

    def _record(self, policy: PolicyLike) -> Record:
        script, record = self.script, Record()
        with ExitStack() as stack:
            stack.enter_context(_environment(script.environment))
            stack.enter_context(_logging(record.logged))
            server = ScriptedServer(_routed(script), model=USUAL, price_per_million=script.price)
            stack.enter_context(server)
            chosen, store = dict(script.policy), ""
            if script.key is not None:
                store = stack.enter_context(_store(script))
                chosen["key"] = {**script.key, "store": store}
            guard = LoopGuard(chosen if policy is None else policy, plugins=[*script.plugins(record), record.recorder])
            build = self.driver.build(self._agent(record, server.base_url, guard))
            if script.threads == 1:
                self._talk(record, build())
            else:
                with ThreadPoolExecutor(script.threads) as pool:
                    list(pool.map(lambda _: self._talk(record, build()), range(script.threads)))
            record.requests = server.requests
            if script.key is not None:
                guard.close()  # waits for what is still settled
                record.key = None if script.store_down else _status(store, script.key["name"])
        return record

    def _talk(self, record: Record, conversation: Conversation) -> None:
        after = [self.script.then] if self.script.then and "history" in self.driver.features else []
        for text in (*self.script.turns, *after):
            turn = conversation.send(text)
            record.turns.append(turn)
            while turn.waiting:
                turn = conversation.approve()
                record.turns.append(turn)
        record.history = conversation.history()

    def _agent(self, record: Record, base_url: str, guard: LoopGuard) -> Agent:
        script = self.script

        def tools(functions: Mapping[str, ToolFunction]) -> list[ToolSpec]:
            return [
                ToolSpec(name, _counted(record, name, function), approval=name in script.approval)
                for name, function in functions.items()
            ]

        inner = [
            ToolSpec(name, lambda _: None, agent=Agent(base_url, f"{USUAL}/{name}", tools(functions), guard))
            for name, (_, functions) in script.nested.items()
        ]
        strong = STRONG if script.escalation else None
        every = [*tools(script.tools), *inner]
        return Agent(base_url, USUAL, every, guard, strong, script.on_stop, script.max_tokens)


def cases(*drivers: Driver, scripts: Sequence[Script] = SCRIPTS) -> list[Case]:
    """Every script on every driver that can show it."""
    return [Case(script, driver) for driver in drivers for script in scripts if not _missing(script, driver)]


def table(*drivers: Driver, scripts: Sequence[Script] = SCRIPTS) -> dict[str, dict[str, str]]:
    """Script by surface and mode: "run", or what the surface lacks."""
    return {
        script.name: {f"{driver.surface.name} ({driver.mode})": _missing(script, driver) or "run" for driver in drivers}
        for script in scripts
    }


def _missing(script: Script, driver: Driver) -> str:
    lacking = [*(script.needs - driver.surface.capabilities), *(script.features - driver.features)]
    if script.name in getattr(driver, "cannot", ()):
        lacking.append("this script")
    return "" if not lacking else "cannot: " + ", ".join(sorted(lacking))


def _routed(script: Script) -> Persona:
    """One server plays the agent's model and those of the agents inside its tools, told apart by the model's name."""

    def persona(request: ChatRequest) -> Reply:
        _, _, inner = str(request.raw.get("model")).partition("/")
        return script.nested[inner][0](request) if inner else script.persona(request)

    return persona


def _counted(record: Record, name: str, function: ToolFunction) -> Callable[[Mapping[str, Any]], Any]:
    lock = threading.Lock()

    def body(arguments: Mapping[str, Any]) -> Any:
        with lock:
            before = record.ran(name)
            record.executions.append((name, dict(arguments)))
        return function(arguments, before)

    return body


@contextmanager
def _store(script: Script) -> Iterator[str]:
    """The address of a new store, with what was spent in it before; where it is to be down, it cannot be opened."""
    with tempfile.TemporaryDirectory(prefix="loopguard-conformance-", ignore_cleanup_errors=True) as directory:
        if script.store_down:
            yield f"sqlite:///{directory}"  # a directory is no file
            return
        store = f"sqlite:///{directory}/keys.db"
        if script.key is not None and script.key_spent:
            with open_ledger(store) as ledger:
                ledger.settle(ledger.reserve(script.key["name"], script.key_spent), script.key_spent)
        yield store


def _status(store: str, key: str) -> KeyStatus:
    with open_ledger(store) as ledger:
        return ledger.status(key)


class _Kept(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def _logging(lines: list[str]) -> Iterator[None]:
    kept, logger = _Kept(lines), logging.getLogger("loopguard")
    logger.addHandler(kept)
    try:
        yield
    finally:
        logger.removeHandler(kept)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
