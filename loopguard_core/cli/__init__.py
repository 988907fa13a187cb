"""The `loopguard` command. Commands that need an SDK come from the entry-point group `loopguard.commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version

from loopguard_core._errors import LoopGuardError
from loopguard_core.cli import adapters, key, plugins, policy, replay, score, watch
from loopguard_core.cli._words import Words

COMMAND_GROUP = "loopguard.commands"

_ABOUT = {
    "bench": "how many calls of a failing tool run, unguarded and guarded",
    "demo": "run a looping billing agent, unguarded and guarded, and draw what it costs",
    "gateway": "run an OpenAI-compatible proxy with loop detection and spending limits",
}
"""What commands of the project's own adapters do; their modules are not imported to be asked."""

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `loopguard`; None takes them from the command line.

    Returns:
        The exit status: 0 done, 1 done with findings, 2 it could not be done.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    external = bool(words) and words[0] in entry_points(group=COMMAND_GROUP).names
    # argparse would take an option that comes first for its own, so the rest goes past it.
    args = _parser().parse_args(words[:1] if external else words)
    args.rest = words[1:]
    handler: Callable[[argparse.Namespace], int] = args.handler
    try:
        return handler(args)
    except LoopGuardError as error:
        print(f"loopguard: {error}", file=sys.stderr)
        return _EXIT_ERROR
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Words(prog="loopguard", description="Stops AI agents that are stuck in a loop.")
    parser.add_argument("--version", action="version", version=f"loopguard-core {version('loopguard-core')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (replay, score, watch, policy, key, plugins, adapters):
        module.add_parser(commands)
    for point in sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name):
        _add_external(commands, point)
    return parser


def _add_external(commands: argparse._SubParsersAction[argparse.ArgumentParser], point: EntryPoint) -> None:
    """Add a command whose module is only imported when it is called for: importing an SDK takes seconds."""
    about = _ABOUT.get(point.name, f"(from {point.value.partition(':')[0]})")
    sub = commands.add_parser(point.name, add_help=False, help=about)

    def run(args: argparse.Namespace) -> int:
        try:
            command: Callable[[Sequence[str]], int] = point.load()
        except ImportError as error:  # by convention a command's extra has its name
            hint = f"pip install 'loopguard-core[{point.name}]'; in a checkout: pip install '.[{point.name}]'"
            why = str(error).partition(": pip install")[0]  # what that would install may not be all of it
            print(f"loopguard {point.name} needs more than the core: {hint} ({why})", file=sys.stderr)
            return _EXIT_ERROR
        return command(args.rest)

    sub.set_defaults(handler=run)
