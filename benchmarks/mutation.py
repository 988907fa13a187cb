"""Do the tests notice when a detector is wrong? Changes one operator, figure or condition at a time and runs them.

    python benchmarks/mutation.py                 # all seven detectors: half an hour on one idle core
    python benchmarks/mutation.py cycle           # one of them

A mutant is *killed* by the first test that fails, and *survives* if none does. Tests are collected once; each mutant is
a fork of that process in which functions have other code, so no file is changed. Of the detector's tests it runs those
that reach the line and take less than a second, the quickest first. `benchmarks/mutation.md` has the score, and
what is known of those that survive. Needs the extra `test`, and an operating system with fork.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import inspect
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "loopguard_core.detectors"
TESTS: dict[str, tuple[str, ...]] = {
    "repeated_call": ("detectors/test_repeated_call_aware.py", "core/test_rounds_conformance.py"),
    "cycle": ("detectors/test_cycle.py",),
    "repeated_failure": ("detectors/test_repeated_failure.py",),
    "stagnation": ("detectors/test_stagnation.py",),
    "_near_requests": ("detectors/test_stagnation.py",),
    "_equal_results": ("detectors/test_stagnation.py",),
    "repeated_message": ("detectors/test_repeated_message.py",),
    "rephrased_search": ("detectors/test_rephrased_search.py",),
    "text_repetition": ("detectors/test_text_repetition.py", "detectors/test_text_loops.py"),
}
"""Detectors, with the parts that were taken out of one, and the files of tests that are theirs."""
ALL = ("detectors/test_figures.py",)
"""Tests of all of them."""
SLOW = 1.0  # seconds of processor time, traced: the few tests above it are left out
SECONDS = 3  # of processor time, besides twice what the tests take; longer is a mutant that never ends, and killed

ORDER = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
OPPOSITE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}


# -- what is changed ---------------------------------------------------------------------------------------------------


def changed(node: ast.expr) -> Iterator[ast.expr]:
    """The ways to get one expression wrong."""
    match node:
        case ast.Compare():
            yield from compared(node)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                left = [value for at, value in enumerate(values) if at != place]
                yield left[0] if len(left) == 1 else ast.BoolOp(op, left)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))


def compared(node: ast.Compare) -> Iterator[ast.expr]:
    """A comparison with another operator."""
    for place, operator in enumerate(node.ops):
        for other in ORDER.get(type(operator), ()) or (OPPOSITE[type(operator)],):
            mutant = copy.deepcopy(node)
            mutant.ops[place] = other()
            yield mutant


def expressions(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Every expression that means something at run time, with where it hangs."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.expr):
                    yield parent, field, place, child


def mutants(source: str) -> Iterator[tuple[range, str, ast.Module]]:
    """Lines, what was changed, and the module with that change."""
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
    }
    for parent, field, place, node in list(expressions(tree)):
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1) if id(node) in inside else range(0)
        for other in changed(node):
            put(parent, field, place, ast.fix_missing_locations(ast.copy_location(other, node)))
            yield lines, f"{node.lineno}: {ast.unparse(node)}  ->  {ast.unparse(other)}", tree
            put(parent, field, place, node)


def put(parent: ast.AST, field: str, place: int | None, node: ast.expr) -> None:
    """Hang an expression where another one hung."""
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node


def patch(module: ModuleType, tree: ast.Module) -> None:
    """Make a module behave as `tree` says, for everyone who has its functions and classes already."""
    fresh = ModuleType(module.__name__)
    fresh.__file__ = module.__file__
    exec(compile(tree, str(module.__file__), "exec"), fresh.__dict__)  # our own source, changed
    for name, value in vars(fresh).items():
        if name.startswith("__") or getattr(value, "__module__", module.__name__) != module.__name__:
            continue
        real = getattr(module, name)
        if inspect.isfunction(value):
            take_code(real, value)
        elif inspect.isclass(value):
            take_class(real, value)
        elif not inspect.ismodule(value):
            for user in list(sys.modules.values()):  # also those that imported it by name
                ours = str(getattr(user, "__file__", "")).startswith(str(ROOT))
                if ours and vars(user).get(name, ...) is real:
                    setattr(user, name, value)


def take_class(real: type, fresh: type) -> None:
    """Methods and plain class attributes."""
    for name, value in vars(fresh).items():
        own = vars(real).get(name)
        if isinstance(value, classmethod | staticmethod):
            take_code(own.__func__, value.__func__)  # type: ignore[union-attr]
        elif isinstance(value, property):
            take_code(own.fget, value.fget)  # type: ignore[union-attr]
        elif inspect.isfunction(value):
            take_code(own, value)
        elif isinstance(value, int | float | str | tuple) and not name.startswith("__"):
            setattr(real, name, value)


def take_code(real: Any, fresh: Any) -> None:
    """What a function does, with its defaults."""
    real.__code__, real.__defaults__, real.__kwdefaults__ = fresh.__code__, fresh.__defaults__, fresh.__kwdefaults__


# -- what is run -------------------------------------------------------------------------------------------------------


class Mutation:
    """A pytest plugin that runs the collected tests once as they are, and then for every mutant in a fork."""

    def __init__(self, names: list[str], results: Path | None, again: Path | None) -> None:
        self.modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in names}
        self.files = {str(module.__file__): name for name, module in self.modules.items()}
        self.reached: dict[str, dict[int, list[pytest.Item]]] = {name: {} for name in names}
        self.took: dict[pytest.Item, float] = {}
        self.score: dict[str, list[tuple[bool, str]]] = {name: [] for name in names}
        self.results = results
        rows = [] if again is None else [json.loads(line) for line in again.read_text().splitlines()]
        survived = {(row["file"], row["what"]) for row in rows if not row["killed"]}
        self.known = {(row["file"], row["what"]) for row in rows} - survived
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One failure is enough."""
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        for item in session.items:
            lines: set[tuple[str, int]] = set()
            started = time.process_time()
            sys.settrace(self.tracer(lines))
            run(item)
            sys.settrace(None)
            self.took[item] = time.process_time() - started
            for name, line in lines:
                self.reached[name].setdefault(line, []).append(item)
        if self.failed:
            raise session.Failed("the tests fail without any change")
        print(f"{len(self.took)} tests take {sum(self.took.values()):.0f} s of processor time", file=sys.stderr)
        for name, module in self.modules.items():
            for lines_of, what, tree in mutants(Path(str(module.__file__)).read_text()):
                killed = (name, what) in self.known or self.killed(module, tree, self.tests(name, lines_of))
                self.score[name].append((killed, what))
                if self.results is not None:
                    with self.results.open("a") as out:
                        out.write(json.dumps({"file": name, "killed": killed, "what": what}) + "\n")
        return True

    def tracer(self, lines: set[tuple[str, int]]) -> Any:
        """Notes which lines of the detectors are reached."""

        def trace(frame: FrameType, *_: object) -> Any:
            name = self.files.get(frame.f_code.co_filename)
            if name is None:
                return None
            lines.add((name, frame.f_lineno))
            return trace

        return trace

    def tests(self, name: str, lines: range) -> list[pytest.Item]:
        """Those that reach a line, the quickest first; what stands outside of functions may be told by any."""
        reached = self.reached[name]
        found = {item for line in lines for item in reached.get(line, ())} if lines else set(self.took)
        return sorted((item for item in found if self.took[item] <= SLOW), key=self.took.__getitem__)

    def killed(self, module: ModuleType, tree: ast.Module, tests: list[pytest.Item]) -> bool:
        """Whether a test fails."""
        child = os.fork()
        if child == 0:
            limit = SECONDS + int(2 * sum(self.took[item] for item in tests))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            try:
                patch(module, tree)
                for item in tests:
                    run(item)
                    if self.failed:
                        break
            except BaseException:  # noqa: BLE001  # whatever it is, somebody noticed
                self.failed = True
            os._exit(int(self.failed))
        return os.waitpid(child, 0)[1] != 0


def run(item: pytest.Item) -> None:
    """One test, with its fixtures set up and taken down."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def main() -> None:
    """Print the score, and what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(TESTS), metavar="DETECTOR")
    parser.add_argument("--json", type=Path, help="where each mutant and what became of it is appended")
    parser.add_argument("--again", type=Path, help="such a file: what was killed there is not tried again")
    options = parser.parse_args()
    if unknown := set(options.names) - set(TESTS):
        parser.error(f"no such detector: {', '.join(sorted(unknown))}; there are: {', '.join(TESTS)}")
    # A failure need not be made small, and the same run gives the same score.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", phases=phases, derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")
    started = time.monotonic()
    os.chdir(ROOT)
    files = [f"tests/{file}" for file in (*(file for name in options.names for file in TESTS[name]), *ALL)]
    plugin = Mutation(options.names, options.json, options.again)
    status = pytest.main(["-p", "no:cacheprovider", *files], plugins=[plugin])
    for name, mutated in plugin.score.items():
        for killed, what in mutated:
            if not killed:
                print(f"survived  {name}.py:{what}")
    for name, mutated in plugin.score.items():
        print(f"{name:18}{sum(killed for killed, _ in mutated):5} of{len(mutated):5} killed")
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(int(status))


if __name__ == "__main__":
    main()
