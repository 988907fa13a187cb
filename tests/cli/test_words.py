"""Words that are not understood: which command, what was meant."""

from __future__ import annotations

import pytest

from loopguard_core.cli import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "replay --fromat json run.json",
            "loopguard replay: error: unrecognized arguments: --fromat; did you mean --f",
        ),
        ("policy check --foo", "loopguard policy check: error: unrecognized arguments: --foo"),
        ("key set billing 5", "loopguard key set: error: unrecognized arguments: 5"),
        ("plugins --check loopguard.toml", "loopguard plugins: error: unrecognized arguments: loopguard.toml"),
    ],
)
def test_the_command_that_does_not_know_a_word_says_so(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert f"usage: {told.partition(':')[0]} " in shown


def test_help_says_what_commands_of_other_packages_do_without_importing_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "(from loopguard_" not in capsys.readouterr().out
