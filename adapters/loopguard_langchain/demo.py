"""`loopguard demo`: a looping billing agent, unguarded and guarded, with what each run cost."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from loopguard_core import LoopGuard
from loopguard_langchain._billing_agent import PRICE, Run, chat_model, run_agent, scripted_endpoint
from loopguard_langchain._demo_figures import Measure, as_json
from loopguard_langchain._demo_runs import REAL_SCENARIOS, SCENARIOS, Scenario
from loopguard_langchain._demo_svg import svg_chart
from loopguard_langchain._demo_view import Silence, Story

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

_OK, _FAILED = 0, 2
_KEY_VARIABLE = "OPENAI_API_KEY"
_SCRIPTED = (
    "The model is scripted and answers on loopback: no network, no key, no bill. "
    f"Its price is set to ${PRICE[0]} and ${PRICE[1]} for a million tokens in and out."
)
_TITLE = "A tool that always times out: what the agent's retries cost"


def command(argv: Sequence[str]) -> int:
    """Run the demo.

    Args:
        argv: The words after `loopguard demo`.

    Returns:
        The exit status: 0, or 2 if it could not be shown.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.base_url is None) != (args.model is None) or (args.api_key_env is not None and args.base_url is None):
        parser.error("a real model needs both --base-url and --model")
    missing = next((name for name in ("langchain", "langchain_openai") if not _installed(name)), None)
    if missing is not None:
        return _complain(f"{missing} is not installed: pip install 'loopguard-core[demo]'")
    if not LoopGuard().enabled:
        return _complain("LOOPGUARD_ENABLED switches loopguard off; unset it to see the demo")
    key = os.environ.get(args.api_key_env or _KEY_VARIABLE)
    if args.api_key_env is not None and not key:
        return _complain(f"the environment variable {args.api_key_env} is not set")
    story = None if args.json else Story(Console(highlight=False))
    try:
        runs = _runs(args, key or "unused", story)
        written = _write_svg(runs, args.svg)
    except _Failed as error:
        return _complain(str(error))
    if story is None:
        print(json.dumps(as_json(runs, args.model or "scripted")))
    else:
        story.conclude(runs, written)
    return _OK


class _Failed(Exception):  # noqa: N818  # it is no error of ours
    """The demo cannot go on, for a reason outside it."""


def _runs(args: argparse.Namespace, key: str, story: Story | None) -> list[Run]:
    """Every run, told as it happens."""
    scripted = args.base_url is None
    if story is not None:
        story.introduce(_SCRIPTED if scripted else f"The model is {args.model} at {args.base_url}.")
    runs: list[Run] = []
    # A real model answers as it likes: guarded once is enough to compare.
    for scenario in SCENARIOS if scripted else REAL_SCENARIOS:
        if story is not None:
            story.begin(scenario)
        with _model(scenario, args, key) as model:
            runs.append(run_agent(scenario.name, scenario.policy(), model, story or Silence()))
        if story is not None and runs[-1].ended == "complete":
            story.answer(runs[-1])
    return runs


@contextmanager
def _model(scenario: Scenario, args: argparse.Namespace, key: str) -> Iterator[BaseChatModel]:
    from openai import OpenAIError

    if args.base_url is None:
        with scripted_endpoint(scenario.persona) as model:
            yield model("scripted-1")
        return
    try:
        yield chat_model(args.base_url, args.model, key)
    except OpenAIError as error:
        reason = " ".join(str(error).split())
        raise _Failed(f"{args.model} at {args.base_url} did not answer: {type(error).__name__}: {reason}") from error


def _write_svg(runs: Sequence[Run], file: Path | None) -> str | None:
    if file is None:
        return None
    measure = Measure(runs)
    picture = svg_chart(measure.curves(runs), measure.tick, title=_TITLE, unit=f"{measure.unit} spent so far")
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise _Failed(f"{file} cannot be written ({error.strerror})") from error
    return str(file)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # it is loaded, or kept from loading, in a way that leaves no spec
        return False


def _complain(text: str) -> int:
    print(f"loopguard demo: {text}", file=sys.stderr)
    return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopguard demo",
        description="Run a billing agent whose tool always times out, unguarded and guarded, and compare the cost. "
        "By default a scripted model plays it on loopback: no network, no key, no bill.",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the cost curve to FILE as well")
    real = parser.add_argument_group("a real model", "OpenAI-compatible; two runs, each capped. It costs real money.")
    real.add_argument("--base-url", metavar="URL", help="for example https://openrouter.ai/api/v1")
    real.add_argument("--model", metavar="NAME", help="its name at that endpoint")
    real.add_argument(
        "--api-key-env", metavar="NAME", help=f"environment variable that holds the key; default: {_KEY_VARIABLE}"
    )
    return parser
