"""`loopguard plugins`: what is installed, what it implements, and whether this policy would load it."""

from __future__ import annotations

import argparse
import inspect
from importlib.metadata import EntryPoint, entry_points

from rich.markup import escape
from rich.table import Table

from loopguard_core._errors import PluginError
from loopguard_core._faults import Faults
from loopguard_core._plugins import ENTRY_POINT_GROUP, Plugins
from loopguard_core._policy_file import resolve_policy
from loopguard_core.cli._console import Terminal


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("plugins", help="list installed plugins and the hooks they implement")
    parser.add_argument("--policy", metavar="FILE", help="the policy that decides which are loaded")
    parser.add_argument("--check", action="store_true", help="import each plugin and say which hooks it implements")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; with `--check`, status 1 if one of them cannot be used."""
    named = resolve_policy(args.policy).plugins
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    console = Terminal()
    if not installed and not named:
        console.print("No plugins are installed. A package offers one through the entry-point group `loopguard`.")
        return 0
    table = Table("plugin", "from", "loaded by the policy", *(["hooks"] if args.check else []))
    failed = False
    for name in sorted({*installed, *named}):
        point = installed.get(name)
        origin = _origin(point) if point is not None else "not installed"
        row = [escape(name), escape(origin), "yes" if name in named else "no"]
        if args.check:
            hooks, usable = _hooks(point)
            failed = failed or not usable
            row.append(escape(hooks))
        table.add_row(*row)
        failed = failed or (name in named and point is None)
    console.print(table)
    return int(failed)


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _hooks(point: EntryPoint | None) -> tuple[str, bool]:
    if point is None:
        return "not installed", False
    try:
        plugin = point.load()
        plugins = Plugins(Faults())
        plugins.register(plugin() if inspect.isclass(plugin) else plugin, name=point.name)
    except PluginError as error:
        return str(error), False
    except Exception as error:  # noqa: BLE001  # whatever a foreign module does when it is imported
        return f"cannot be loaded: {type(error).__name__}: {error}", False
    return ", ".join(plugins.registered[0].hooks), True
