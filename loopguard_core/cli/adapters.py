"""`loopguard adapters`: what each way to attach loopguard can do, from the adapters' own declarations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import get_args

from rich.markup import escape
from rich.table import Column, Table

from loopguard_core._surface import Capability, Surface
from loopguard_core.cli._console import Terminal

SURFACE_GROUP = "loopguard.surfaces"
"""Entry points: an adapter's name to a sequence of its surfaces. The name is also that of its extra."""

CAPABILITIES: tuple[Capability, ...] = get_args(Capability)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("adapters", help="list the SDKs loopguard attaches to, and what it can do in each")
    parser.add_argument("--format", choices=["table", "markdown"], default="table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Print what is installed."""
    points = sorted(entry_points(group=SURFACE_GROUP), key=lambda point: point.name)
    loaded = {point.name: _surfaces(point) for point in points}
    if args.format == "markdown":
        print(markdown([surface for surfaces in loaded.values() for surface in surfaces or ()]), end="")
        return 0
    table = Table("adapter", Column("attach", overflow="fold"), *CAPABILITIES)
    for name, surfaces in loaded.items():
        if surfaces is None:
            table.add_row(name, escape(f"not installed: pip install 'loopguard-core[{name}]'"))
        for surface in surfaces or ():
            table.add_row(name, escape(surface.name), *_marks(surface))
    Terminal().print(table)
    return 0


def markdown(surfaces: Sequence[Surface]) -> str:
    """The table for the docs."""
    head = ["| attach | " + " | ".join(CAPABILITIES) + " |", "|---|" + "---|" * len(CAPABILITIES)]
    rows = [f"| `{surface.name}` | " + " | ".join(_marks(surface)) + " |" for surface in surfaces]
    return "\n".join([*head, *rows]) + "\n"


def _marks(surface: Surface) -> list[str]:
    return ["yes" if capability in surface.capabilities else "-" for capability in CAPABILITIES]


def _surfaces(point: EntryPoint) -> Sequence[Surface] | None:
    try:
        surfaces: Sequence[Surface] = point.load()
    except ImportError:  # its SDK is not installed
        return None
    return surfaces
