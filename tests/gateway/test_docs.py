"""What the docs say of the command and its settings is so."""

import re
from pathlib import Path

import pytest
from loopguard_gateway import Settings
from loopguard_gateway._conversations import _MOST_MESSAGES, _MOST_VALUES, MOST_TEXT
from loopguard_gateway._request import MAX_PARTS
from loopguard_gateway.cli import command

DOC = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")


def test_every_option_is_there_and_no_other(capsys):
    with pytest.raises(SystemExit):
        command(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--log-level", "--limit"}
    said = set(re.findall(r"`(--[a-z-]+)", DOC)) | set(re.findall(r" (--[a-z-]+) ", DOC))
    assert said - {"--limit", "--reset"} == known


def test_defaults_are_as_said():
    settings = Settings("https://x/v1")
    assert settings.max_body == 32 * 1024 * 1024
    for value in (settings.max_output_tokens, settings.max_sessions, settings.max_concurrent):
        assert f"{value:,}" in DOC
    assert f"up to {settings.max_refusals} times" in DOC
    assert (settings.silence_timeout, settings.call_timeout, settings.send_timeout, settings.body_timeout) == (
        600,
        3600,
        60,
        60,
    )
    assert settings.hold_ttl == 300
    assert f"{settings.max_memory // 1024**3} GiB of memory" in DOC
    assert f"more than {settings.max_answer // 1024**2} MiB in" in DOC
    assert f"{MAX_PARTS:,} brackets and commas" in DOC
    assert f"{_MOST_MESSAGES:,} messages, {_MOST_VALUES:,} objects, {MOST_TEXT // 1024**2} MiB of text" in DOC
