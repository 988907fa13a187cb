"""`loopguard key`: make keys, set their limits, and see what they spend."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, get_args

from rich.text import Text

from loopguard_core._policy_file import find_policy, load_policy
from loopguard_core.cli._console import Terminal
from loopguard_core.cli._key_view import as_dict, history_as_dict, print_key, print_list
from loopguard_core.keys import DEFAULT_STORE, KeyStatus, Ledger, LedgerValueError, Reset, open_keyring, open_ledger
from loopguard_core.keys._amounts import to_nano
from loopguard_core.keys._names import check_name

OK, NOT_FOUND = 0, 1

_STORE_HELP = f"address of the ledger; by default key.store of the policy found here, else {DEFAULT_STORE}"
_DAYS = 31


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `key` and its commands to the parser of `loopguard`."""
    parser = subparsers.add_parser("key", help="make keys, set their spending limits, see what they spend")
    commands = parser.add_subparsers(dest="key_command", required=True, metavar="COMMAND")

    create = _command(commands, "create", create_command, "make a key; its secret is shown this once")
    create.add_argument("name", metavar="NAME")
    _add_limit(create)
    create.add_argument("--replace", action="store_true", help="give a key that has a secret a new one")

    _command(commands, "list", list_command, "all keys, what they spent and what is left")

    show = _command(commands, "show", show_command, "one key: its period and its days")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--days", type=int, default=_DAYS, metavar="N", help=f"days to look back; default: {_DAYS}")

    change = _command(commands, "set", set_command, "change a key's limit or reset; what was spent stays")
    change.add_argument("name", metavar="NAME")
    _add_limit(change)

    delete = _command(commands, "delete", delete_command, "forget a key: secret, limit and spending")
    delete.add_argument("name", metavar="NAME")

    spend = _command(commands, "spend", spend_command, "count spending from elsewhere on a key")
    spend.add_argument("name", metavar="NAME")
    spend.add_argument("amount", metavar="AMOUNT", help="US dollars, such as 0.50")


def create_command(args: argparse.Namespace) -> int:
    """Make a key. The JSON has `name`, `key` (the secret), `limit` and `reset`."""
    name, limit = check_name(args.name), _limit(args.limit)
    address = _address(args)
    with open_ledger(address) as ledger, open_keyring(address) as keyring:
        secret = keyring.create(name, replace=args.replace)
        _set(ledger, name, limit if args.limit is not None else ..., args.reset)
        status = ledger.status(name)
        where = ledger.address
    if args.format == "json":
        row = as_dict(status)
        print(json.dumps({"name": name, "key": secret, "limit": row["limit"], "reset": row["reset"]}))
        return OK
    console = _console()
    print_key(console, status, {}, where)
    console.print()
    console.print(Text.assemble("secret  ", (secret, "bold")), soft_wrap=True)
    console.print(Text("It is shown this once: only its hash is stored.", style="yellow"), soft_wrap=True)
    return OK


def list_command(args: argparse.Namespace) -> int:
    """Print all keys. The JSON is a list, each as `show` has it but without `days`."""
    with open_ledger(_address(args)) as ledger:
        statuses = [ledger.status(name) for name in ledger.names()]
        if args.format == "json":
            print(json.dumps([as_dict(status) for status in statuses]))
        else:
            print_list(_console(), statuses, ledger.address)
    return OK


def show_command(args: argparse.Namespace) -> int:
    """Print one key.

    Returns:
        0, or 1 if there is no such key.
    """
    with open_ledger(_address(args)) as ledger:
        if not _known(ledger, args.name):
            return NOT_FOUND
        _print_status(args, ledger, ledger.status(args.name))
    return OK


def set_command(args: argparse.Namespace) -> int:
    """Change limit, reset or both; a key that was not known is then."""
    if args.limit is None and args.reset is None:
        raise LedgerValueError("nothing to change: give --limit, --reset or both")
    limit = _limit(args.limit)
    with open_ledger(_address(args)) as ledger:
        _set(ledger, check_name(args.name), limit if args.limit is not None else ..., args.reset)
        _print_status(args, ledger, ledger.status(args.name))
    return OK


def delete_command(args: argparse.Namespace) -> int:
    """Forget a key and its secret.

    Returns:
        0, or 1 if there is no such key.
    """
    name, address = check_name(args.name), _address(args)
    with open_ledger(address) as ledger, open_keyring(address) as keyring:
        if name not in ledger.names() and name not in keyring.names():
            return _not_found(name, ledger.address)
        # The secret first: should the rest fail, nobody spends on a key whose limit is gone.
        keyring.revoke(name)
        ledger.delete(name)
    if args.format == "json":
        print(json.dumps({"name": name, "deleted": True}))
    else:
        _console().print(Text(f"{name} is deleted."), soft_wrap=True)
    return OK


def spend_command(args: argparse.Namespace) -> int:
    """Count spending by hand, above the limit too."""
    with open_ledger(_address(args)) as ledger:
        ledger.spend(args.name, args.amount)
        _print_status(args, ledger, ledger.status(args.name))
    return OK


def _command(
    commands: argparse._SubParsersAction[Any], name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("--store", metavar="URL", help=_STORE_HELP)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    parser.set_defaults(handler=handler)
    return parser


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", metavar="AMOUNT", help="US dollars a period, such as 0.50; none: no limit")
    parser.add_argument("--reset", choices=get_args(Reset), help="when the period starts afresh, in UTC")


def _address(args: argparse.Namespace) -> str:
    if args.store is not None:
        return str(args.store)
    found = find_policy()
    key = None if found is None else load_policy(found).key
    return DEFAULT_STORE if key is None or key.store is None else key.store


def _limit(text: str | None) -> str | None:
    """The limit as `set_limit` takes it. Checked at once, so that nothing is half done."""
    if text is None or text.lower() == "none":
        return None
    to_nano("limit", text)
    return text


def _set(ledger: Ledger, name: str, limit: Any, reset: Reset | None) -> None:
    """Set what was given; the rest of a known key stays as it is."""
    now = ledger.status(name)
    ledger.set_limit(name, now.limit if limit is ... else limit, now.reset if reset is None else reset)


def _print_status(args: argparse.Namespace, ledger: Ledger, status: KeyStatus) -> None:
    history = ledger.history(status.key, getattr(args, "days", _DAYS))
    if args.format == "json":
        print(json.dumps({**as_dict(status), "days": history_as_dict(history)}))
    else:
        print_key(_console(), status, history, ledger.address)


def _known(ledger: Ledger, name: str) -> bool:
    if check_name(name) in ledger.names():
        return True
    _not_found(name, ledger.address)
    return False


def _not_found(name: str, address: str) -> int:
    print(f"loopguard key: there is no key {name!a} in {address}", file=sys.stderr)
    return NOT_FOUND


def _console() -> Terminal:
    return Terminal(file=sys.stdout, highlight=False)
