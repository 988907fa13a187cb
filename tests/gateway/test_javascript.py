"""The example in JavaScript, with the official client."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from loopguard_gateway_kit import chat

from loopguard_core.testing import never_listens

EXAMPLE = Path(__file__).parents[2] / "examples" / "gateway_js"
LOOPS = chat(never_listens("fetch_invoice", {"invoice_id": "INV-2291"}))


def run(served):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    if not (EXAMPLE / "node_modules" / "openai").is_dir():
        pytest.skip("needs the openai package: npm install, in examples/gateway_js")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("node needs more address space than this shell allows (ulimit -v)")
    environment = {**os.environ, "GATEWAY_URL": served.base_url, "GATEWAY_KEY": served.key}
    done = subprocess.run(
        [node, "agent.mjs"], cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_its_loop_is_ended(gateway):
    provider, served = gateway(LOOPS)
    *ran, answer = run(served)
    assert ran == ['fetch_invoice({"invoice_id": "INV-2291"}) runs: timed out'] * 2
    assert answer.startswith("Answer: [loopguard] The run was ended")
    assert len(provider.requests) == 6


def test_it_is_told_that_no_money_is_left(gateway):
    provider, served = gateway(LOOPS, limit="0")
    (said,) = run(served)
    assert said.startswith('No money left: The spending limit is reached: key "team"')
    assert provider.requests == []
