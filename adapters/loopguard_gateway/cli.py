"""`loopguard gateway`: serve the gateway."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from loopguard_core import LoopGuardError, Policy, resolve_policy
from loopguard_core.keys import DEFAULT_STORE, open_ledger
from loopguard_gateway._metrics import SHARED
from loopguard_gateway._settings import Settings, SettingsError
from loopguard_gateway.app import create_app

_FAILED = 2
_MAX_PORT = 65_535
_BACKLOG = 2048
_APP = "loopguard_gateway.cli:app_from_environment"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TOLD = "GATEWAY_OF_LOOPGUARD"
"""How workers are told what the command was told: JSON, without the provider's key."""


def command(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM.

    Args:
        argv: The words after `loopguard gateway`.

    Returns:
        The exit status: 0, or 2 if it could not start.
    """
    args = _parser().parse_args(argv)
    _log_from(args.log_level)
    try:
        policy = resolve_policy(None if args.policy is None else Path(args.policy))
        told = _told(args, policy)
        app = create_app(policy, upstream=_settings(told))  # workers make their own; this shows that they can
        taken = _bound(args.host, args.port)
    except (LoopGuardError, OSError) as error:
        print(f"loopguard gateway: {error}", file=sys.stderr)
        return _FAILED
    with taken, tempfile.TemporaryDirectory() as figures:
        os.environ[_TOLD] = json.dumps(told)
        if args.workers > 1:
            os.environ[SHARED] = figures  # read when a worker starts
        return _serve(args, taken, app)


def app_from_environment() -> Starlette:
    """What each worker serves."""
    told = json.loads(os.environ[_TOLD])
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), name="loopguard-parent", daemon=True).start()
    _log_from("error")  # what there is to say of the policy, the command has said
    app = create_app(told["policy"], upstream=_settings(told))
    _log_from(told["log_level"])
    return app


def _end_with(parent: int) -> None:
    """A worker whose supervisor was killed would serve on for ever, and nobody would know."""
    multiprocessing.connection.wait([parent])
    signal.raise_signal(signal.SIGTERM)


def _log_from(level: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("loopguard").setLevel(level.upper())


def _serve(args: argparse.Namespace, taken: socket.socket, app: Starlette) -> int:
    port = taken.getsockname()[1]
    shown = f"[{args.host}]" if ":" in args.host else args.host
    print(f"loopguard gateway: http://{shown}:{port}/v1 -> {args.upstream}", file=sys.stderr, flush=True)
    options: dict[str, Any] = {
        "http": "h11",  # bounds the head of a request; httptools, which is taken where it is installed, does not
        "log_level": args.log_level,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": args.shutdown_timeout,
        "lifespan": "on",
        "ws": "none",
        "backlog": _BACKLOG,
    }
    if args.workers > 1:
        uvicorn.run(_APP, factory=True, fd=taken.fileno(), workers=args.workers, **options)
        return 0
    server = uvicorn.Server(uvicorn.Config(app, **options))
    server.run(sockets=[taken])
    return 0 if server.started else _FAILED


def _told(args: argparse.Namespace, policy: Policy) -> dict[str, Any]:
    """What the command was told, checked as far as it can be without serving."""
    if not 0 <= args.port <= _MAX_PORT:
        raise SettingsError(f"--port {args.port}: must be from 0, which takes a free one, to {_MAX_PORT}")
    if args.workers < 1:
        raise SettingsError(f"--workers {args.workers}: must be 1 or more")
    store = args.store or (policy.key.store if policy.key is not None else None) or DEFAULT_STORE
    if args.workers > 1 and store.startswith(("memory:", "sqlite:///:memory:", "sqlite://:memory:")):
        raise SettingsError("--store: a store in memory is not shared by several workers; use a file, or Redis")
    if args.host not in _LOOPBACK:
        print(
            f"loopguard gateway: {args.host} can be reached from other machines; keys and texts travel unencrypted"
            " unless something in front of it speaks TLS",
            file=sys.stderr,
        )
    open_ledger(store).close()
    return {
        "policy": None if args.policy is None else str(Path(args.policy).absolute()),
        "upstream": args.upstream,
        "key_env": args.upstream_key_env,
        "store": store,
        "ask_usage": args.ask_usage,
        "log_level": args.log_level,
    }


def _settings(told: Mapping[str, Any]) -> Settings:
    name = told["key_env"]
    key = None
    if name is not None:
        key = os.environ.get(str(name))
        if not key:
            raise SettingsError(f"--upstream-key-env {name}: this environment variable is not set, or empty")
    store, ask_usage = str(told["store"]), bool(told["ask_usage"])
    return Settings(str(told["upstream"]), upstream_key=key, store=store, ask_usage=ask_usage)


def _bound(host: str, port: int) -> socket.socket:
    """Take the port now: a server that finds it taken later says so less clearly."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Connections inherit it; without it a small answer may wait 40 ms for an acknowledgement.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(_BACKLOG)  # clients wait from now on, and are not turned away
    except OSError as error:
        taken.close()
        raise SettingsError(f"--host {host} --port {port}: cannot be used ({error.strerror or error})") from None
    return taken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopguard gateway",
        description="Serve an OpenAI-compatible proxy with spending limits and loop detection. Clients show a key that"
        " `loopguard key create NAME --limit 25` made, in the same store.",
    )
    parser.add_argument("--upstream", required=True, metavar="URL", help="such as https://api.openai.com/v1")
    parser.add_argument(
        "--upstream-key-env",
        metavar="NAME",
        help="environment variable with the provider's key; without it none is sent",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=8787, metavar="N", help="default: 8787; 0 takes a free one")
    parser.add_argument(
        "--store", metavar="URL", help=f"the ledger; default: the policy's key.store, else {DEFAULT_STORE}"
    )
    parser.add_argument("--policy", metavar="F", help="policy file; default: the one loopguard finds")
    parser.add_argument(
        "--ask-usage",
        action="store_true",
        help="ask for the usage of streams whose clients do not, and keep it back from them",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; default: 1")
    parser.add_argument(
        "--shutdown-timeout", type=int, default=30, metavar="SECONDS", help="for running requests to end; default: 30"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser
