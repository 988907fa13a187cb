"""`loopguard policy`: check a policy file, show what holds, print the JSON schema."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.text import Text

from loopguard_core._errors import PolicyError
from loopguard_core._plugin_checks import not_installed
from loopguard_core._plugins import ENTRY_POINT_GROUP
from loopguard_core._policy import Policy
from loopguard_core._policy_file import apply_environment, find_policy, load_policy, read_policy_file, resolve_policy
from loopguard_core.cli._console import Terminal
from loopguard_core.cli._policy_format import as_json, as_toml, print_table

OK, HAZARDS, ERRORS = 0, 1, 2

_FILE_HELP = "policy file; by default the one loopguard finds (LOOPGUARD_CONFIG, loopguard.toml, pyproject.toml)"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `policy` and its three commands to the parser of `loopguard`."""
    parser = subparsers.add_parser("policy", help="check a policy, show what holds, print its JSON schema")
    commands = parser.add_subparsers(dest="policy_command", required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="say what is wrong with a policy file; exit 2 if it cannot be used")
    check.add_argument("file", nargs="?", metavar="FILE", help=_FILE_HELP)
    check.add_argument("--strict", action="store_true", help="exit 1 also for hazards")
    check.set_defaults(handler=check_command)

    show = commands.add_parser("show", help="print the effective policy, with every ladder resolved")
    show.add_argument("file", nargs="?", metavar="FILE", help=_FILE_HELP)
    show.add_argument(
        "--preset", metavar="P", help="with FILE, in place of its preset; without FILE, this preset alone"
    )
    show.add_argument("--format", choices=("table", "toml", "json"), default="table", help="default: table")
    show.set_defaults(handler=show_command)

    schema = commands.add_parser("schema", help="print the JSON schema of the policy, for editors")
    schema.set_defaults(handler=schema_command)


def check_command(args: argparse.Namespace) -> int:
    """Check a policy file.

    Returns:
        0 if it can be used, 1 if `--strict` and there are hazards, 2 if it cannot be used.
    """
    try:
        policy, source = _policy(args.file, preset=None)
    except PolicyError as error:
        return _report(error)
    # A plugin that is not there is an error where the guard is made; here it may be another machine's.
    installed = entry_points(group=ENTRY_POINT_GROUP).names
    missing = [not_installed(name, installed) for name in policy.plugins if name not in installed]
    hazards = [*policy.hazards(), *missing]
    # Not wrapped: a line is a finding, for grep as for people.
    console = Terminal(file=sys.stdout, highlight=False, soft_wrap=True)
    for hazard in hazards:
        console.print(Text.assemble(("hazard: ", "yellow"), hazard))
    if not policy.enabled:
        console.print(Text("note: loopguard is switched off (enabled = false or LOOPGUARD_ENABLED)"))
    verdict = f"{len(hazards)} hazard{'s' if len(hazards) > 1 else ''}" if hazards else "ok"
    console.print(Text.assemble(f"{source}: ", (verdict, "yellow" if hazards else "green")))
    return HAZARDS if hazards and args.strict else OK


def show_command(args: argparse.Namespace) -> int:
    """Print the effective policy.

    Returns:
        0, or 2 if the policy cannot be used.
    """
    try:
        policy, source = _policy(args.file, preset=args.preset)
    except PolicyError as error:
        return _report(error)
    if args.format == "table":
        print_table(Terminal(file=sys.stdout, highlight=False), policy, source)
    else:
        print((as_json if args.format == "json" else as_toml)(policy, source))
    return OK


def schema_command(args: argparse.Namespace) -> int:  # noqa: ARG001 - every handler has this signature
    """Print the JSON schema of a policy file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema()}
    print(json.dumps(schema, indent=2))
    return OK


def _policy(file: str | None, *, preset: str | None) -> tuple[Policy, str]:
    """The policy these arguments mean, and where it comes from."""
    if preset is not None:
        if file is None:
            return apply_environment(Policy.from_mapping({"preset": preset}, "--preset")), f"preset {preset}"
        written, source = read_policy_file(file)
        policy = Policy.from_mapping({**written, "preset": preset}, source)
        return apply_environment(policy), f"{source}, preset {preset}"
    path = find_policy() if file is None else Path(file)
    if path is None:
        return apply_environment(resolve_policy()), "no policy file found, built-in default"
    return apply_environment(load_policy(path)), str(path)


def _report(error: PolicyError) -> int:
    console = Terminal(file=sys.stderr, highlight=False, soft_wrap=True)
    for line in str(error).splitlines():
        console.print(Text.assemble(("error: ", "bold red"), line))
    return ERRORS
