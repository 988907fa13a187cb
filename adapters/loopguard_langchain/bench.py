"""`loopguard bench models`: how many real calls a failing tool gets, unguarded, with the reference and by default."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from loopguard_core import LoopGuard
from loopguard_langchain._bench_runs import (
    DEFAULT,
    GUARDS,
    REFERENCE,
    Measured,
    Subject,
    changed_subjects,
    measure,
    published_subjects,
    real_subjects,
    scripted,
)
from loopguard_langchain._bench_view import NOTES, as_json, change_rows, markdown, run_rows, show
from loopguard_langchain._billing_agent import TURNS, Endpoint, chat_model

_OK, _FAILED = 0, 2
_KEY_VARIABLE = "OPENAI_API_KEY"


def command(argv: Sequence[str]) -> int:
    """Run a benchmark.

    Args:
        argv: The words after `loopguard bench`.

    Returns:
        The exit status: 0, or 2 if it could not be run or an endpoint failed.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.base_url is None) != (not args.models) or (args.api_key_env is not None and args.base_url is None):
        parser.error("real models need both --base-url and --models")
    missing = next((name for name in ("langchain", "langchain_openai") if find_spec(name) is None), None)
    if missing is not None:
        return _complain(f"{missing} is not installed: pip install 'loopguard-core[bench]'")
    if not LoopGuard().enabled:
        return _complain("LOOPGUARD_ENABLED switches loopguard off; unset it to measure what it does")
    key = os.environ.get(args.api_key_env or _KEY_VARIABLE)
    if args.api_key_env is not None and not key:
        return _complain(f"the environment variable {args.api_key_env} is not set")
    try:
        return _models(args, key or "unused")
    except OSError as error:
        return _complain(f"{args.output} cannot be written ({error.strerror})")


def _models(args: argparse.Namespace, key: str) -> int:
    real = args.base_url is not None
    subjects = real_subjects(args.models, args.runs) if real else published_subjects()
    changes = [] if real else changed_subjects()
    name = args.base_url if real else "scripted"
    measured: list[Measured] = []
    changed: list[Measured] = []
    with _endpoint(args, key, [*subjects, *changes]) as endpoint, _progress() as progress:
        task = progress.add_task("models", total=len(subjects) * len(GUARDS) + len(changes) * 2)
        runs = chain(
            ((measured, one) for one in measure(endpoint, subjects)),
            ((changed, one) for one in measure(endpoint, changes, (REFERENCE, DEFAULT))),
        )
        for table, one in runs:
            table.append(one)
            progress.update(task, advance=1, description=_at(one))
            if args.output is not None:  # each time: real runs cost money
                text = json.dumps(as_json(measured, changed, name), indent=1)
                args.output.write_text(text + "\n", encoding="utf-8")
    _print(args, measured, changed, name)
    failures = {one.subject.model: one.error for one in measured if one.error is not None}
    for model, error in failures.items():
        _complain(f"{model} at {args.base_url} did not answer: {error}")
    return _FAILED if failures else _OK


@contextmanager
def _endpoint(args: argparse.Namespace, key: str, subjects: Sequence[Subject]) -> Iterator[Endpoint]:
    if args.base_url is not None:
        yield lambda name: chat_model(args.base_url, name, key)
        return
    with scripted(subjects) as endpoint:
        yield endpoint


def _progress() -> Progress:
    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # where nothing is shown, older releases of rich still end the line
    return Progress(console=console, transient=True, disable=console.quiet)


def _at(one: Measured) -> str:
    # rich reads markup in it, and the name of a real model is somebody else's.
    return f"{one.subject.model}, run {one.subject.run}, {one.guard}".replace("[", "\\[")


def _print(args: argparse.Namespace, measured: Sequence[Measured], changed: Sequence[Measured], name: str) -> None:
    if args.format == "json":
        print(json.dumps(as_json(measured, changed, name)))
        return
    if args.format == "markdown":
        print(page(measured, changed))
        return
    console = Console(highlight=False)
    show(console, run_rows(measured, seconds=True), totals=3)
    if changed:
        console.print()
        show(console, change_rows(changed))
        console.print(Text(f"\n{NOTES}"))


def page(measured: Sequence[Measured], changed: Sequence[Measured]) -> str:
    """What `--format markdown` prints, for a page that is to stay the same on every machine.

    Args:
        measured: Every run.
        changed: The runs that show one kind of change each.
    """
    parts = [markdown(run_rows(measured, seconds=False))]
    if changed:
        parts += [markdown(change_rows(changed)), NOTES]
    return "\n\n".join(parts)


def _complain(text: str) -> int:
    print(f"loopguard bench: {text}", file=sys.stderr)
    return _FAILED


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(names) != len(set(names)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different names, such as a,b,c")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loopguard bench", description="Benchmarks that run a whole agent.")
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    models = benchmarks.add_parser(
        "models",
        help="models with a tool that always fails: how many calls it gets, unguarded and guarded",
        description="Run a billing agent whose tool always times out: unguarded, with the reference's detection and "
        "with the default policy. By default scripted models play the published runs on loopback: no network, no "
        "key, no bill.",
    )
    models.add_argument("--format", choices=("table", "json", "markdown"), default="table", help="default: table")
    models.add_argument("--output", metavar="FILE", type=Path, help="save the results to FILE as JSON, after every run")
    real = models.add_argument_group(
        "real models", f"OpenAI-compatible; three runs under three guards each, capped at {TURNS} rounds. Real money."
    )
    real.add_argument("--base-url", metavar="URL", help="for example https://openrouter.ai/api/v1")
    real.add_argument("--models", metavar="NAMES", type=_names, default=[], help="their names there, with commas")
    real.add_argument("--runs", metavar="N", type=_count, default=3, help="runs of each model; default: 3")
    real.add_argument(
        "--api-key-env", metavar="NAME", help=f"environment variable that holds the key; default: {_KEY_VARIABLE}"
    )
    return parser
