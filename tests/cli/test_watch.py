"""`loopguard watch`: passes everything through, and says when and why it would cut."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from text_samples import prose

from loopguard_core.cli import main

LOOP = ("The files were read. " + "Wait, I should check that again. " * 200).encode()
HEALTHY = (prose(9000) + "Ça va, 好的.\n").encode()


class Watch:
    """`loopguard watch` as a pipe sees it."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capfdbinary
        self._patch = monkeypatch

    def __call__(self, data: bytes, *arguments: str) -> tuple[int, bytes, str]:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(["watch", *arguments])
        captured = self._capture.readouterr()
        return code, captured.out, captured.err.decode()


@pytest.fixture
def watch(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watch:
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return Watch(capfdbinary, monkeypatch)


def test_a_healthy_stream_goes_through_in_silence(watch: Watch) -> None:
    assert watch(HEALTHY) == (0, HEALTHY, "")
    assert watch(b"") == (0, b"", "")


def test_a_loop_goes_through_too_and_is_named_once(watch: Watch) -> None:
    code, out, said = watch(LOOP)
    assert (code, out) == (1, LOOP)
    assert said.count("would cut at character 512") == 1
    assert "repeats the same 33 characters" in said
    assert "Wait" not in said


def test_bytes_that_are_no_text_go_through_unchanged(watch: Watch) -> None:
    data = b"\xff\xfe broken \xe4\xbd" + HEALTHY + b"\xe4"
    assert watch(data) == (0, data, "")


def test_what_never_cuts_is_noticed_and_clean(watch: Watch) -> None:
    stock = ["I will start now. ", "Let me begin. ", "Writing the code. ", "On it. ", "Okay, going. ", "Here we go. "]
    shuffled = "".join(stock[n * n * 7 % 13 % 6] + stock[n * 31 % 17 % 6] for n in range(400)).encode()
    code, _, said = watch(shuffled)
    assert code in (0, 1)
    assert "watch:" in said


def test_the_policy_decides(watch: Watch, tmp_path: Path) -> None:
    file = tmp_path / "loopguard.toml"
    file.write_text("[text]\nmin_chars = 3000\n", encoding="utf-8")
    assert "at character 3,008" in watch(LOOP, "--policy", str(file))[2]
    assert "at character 3,008" in watch(LOOP)[2]
    file.write_text("shadow = true\n", encoding="utf-8")
    code, _, said = watch(LOOP)
    assert code == 0
    assert "the action would be steer" in said
    code, out, said = watch(LOOP, "--preset", "openrouter")
    assert (code, out) == (2, b"")
    assert "text_repetition" in said
    assert watch(LOOP, "--preset", "default", "--channel", "arguments")[0] == 2
    assert watch(LOOP, "--preset", "nonesuch")[0] == 2


def test_cut_ends_the_program_that_writes(tmp_path: Path) -> None:
    endless = "import itertools\nfor n in itertools.count(): print('I will now try it once more, and then again.')"
    command = f'{sys.executable} -c "{endless}" 2>/dev/null | {sys.executable} -m loopguard_core.cli watch --cut >out'
    runner = tmp_path / "run.py"
    runner.write_text("from loopguard_core.cli import main\nraise SystemExit(main())", encoding="utf-8")
    command = command.replace("-m loopguard_core.cli", str(runner))
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "would cut" in done.stderr
    assert 0 < (tmp_path / "out").stat().st_size < 1_000_000
