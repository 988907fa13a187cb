"""What `loopguard demo` shows: the story of each run while it happens, then the figures and the curve."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopguard_core import Action, DoomLoopDetected, SessionEnd
from loopguard_langchain._billing_agent import TOOL, Run
from loopguard_langchain._demo_chart import text_chart
from loopguard_langchain._demo_figures import Measure, count, money, saved
from loopguard_langchain._demo_runs import Scenario

_NOTES = {
    Action.OBSERVE: "noted; the call still runs",
    Action.STEER: "the model is told before its next turn",
    Action.ESCALATE: "a stronger model takes the next turn",
    Action.BLOCK: "refused; the model is told why",
    Action.STOP: "refused, and the run ends here",
}
_STYLES = {Action.OBSERVE: "yellow", Action.BLOCK: "red", Action.STOP: "bold red"}
_EVENT_WIDTH = 38
_LONGEST_ANSWER = 300

INTRODUCTION = (
    "A billing agent has to read one invoice. The billing service is down: the tool times out, every time, and the "
    "model just asks again. Each retry sends the whole conversation once more, so each one costs more than the last."
)


class Story:
    """Tells one run after the other; the `Watcher` of each.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = not console.options.ascii_only
        self._number = 0
        self._in_line = False
        self._one_line = False

    def introduce(self, model: str) -> None:
        """Say what is about to be seen.

        Args:
            model: What plays the model, as one sentence.
        """
        self._console.print(Text(INTRODUCTION))
        self._console.print(Text(model, style="dim"))

    def begin(self, scenario: Scenario) -> None:
        """The next run starts."""
        self._number += 1
        self._one_line = not scenario.detection
        self._console.print()
        self._line(f"{self._number}. {scenario.title}", "bold")

    def executed(self) -> None:
        """The tool ran: a line of its own, or one dot of a line where nothing else happens."""
        if not self._one_line:
            self._line(f"{TOOL} runs: timed out")
            return
        if not self._in_line:
            self._console.print(f"{TOOL} runs, a dot each time: ", end="", highlight=False)
            self._in_line = True
        self._console.print(".", end="", highlight=False)

    def loop(self, event: DoomLoopDetected) -> None:
        """A detector fired."""
        text = f"DoomLoopDetected: {event.action.value} (streak {event.streak})"
        self._event(text, _NOTES[event.action], _STYLES.get(event.action, ""))

    def end(self, event: SessionEnd) -> None:
        """The run is over."""
        ran = "once" if event.tool_calls == 1 else f"{event.tool_calls} times"
        usage = event.usage
        spent = money(usage.cost) if usage.cost is not None else f"{count(usage.total_tokens)} tokens"
        self._event(f"SessionEnd: {event.reason}", f"the tool ran {ran}, {spent}", "bold")

    def answer(self, run: Run) -> None:
        """The last message of a run, in one line."""
        self._line(f"Answer: {self._printable(run.answer)}", "italic")

    def conclude(self, runs: Sequence[Run], written: str | None) -> None:
        """The figures, the curve, and what they come to.

        Args:
            runs: What happened.
            written: The file the curve was written to.
        """
        measure = Measure(runs)
        self._console.print()
        self._console.print(_table(runs))
        self._console.print()
        self._line(f"{measure.unit} spent after each model call", "bold")
        width = self._console.width
        for line in text_chart(measure.curves(runs), measure.tick, width=width, unicode=self._unicode):
            text = Text(line)
            text.highlight_regex("[\u2801-\u28ff]+", "red")
            self._console.print(text, soft_wrap=True)
        self._console.print()
        self._line("In your agent: create_agent(..., middleware=[LoopGuardMiddleware()])")
        if written is not None:
            self._line(f"The curve is in {self._printable(written)}")
        self._line(saved(runs), "bold")

    def _event(self, text: str, note: str, style: str) -> None:
        # The event comes first and unindented, so that it can be searched for in recorded output.
        self._line(Text(f"{text:<{_EVENT_WIDTH}} ", style).append(note, "not bold dim"))

    def _line(self, text: str | Text, style: str = "") -> None:
        if self._in_line:
            self._console.print()
            self._in_line = False
        self._console.print(Text(text, style) if isinstance(text, str) else text, soft_wrap=True, highlight=False)

    def _printable(self, text: str) -> str:
        """Text from elsewhere: one line, nothing that moves a cursor, nothing the output cannot take."""
        line = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:_LONGEST_ANSWER]
        return line.encode(self._console.encoding, "replace").decode(self._console.encoding)


class Silence:
    """A `Watcher` that says nothing."""

    def executed(self) -> None:
        """Nothing."""

    def loop(self, event: DoomLoopDetected) -> None:
        """Nothing."""

    def end(self, event: SessionEnd) -> None:
        """Nothing."""


def _table(runs: Sequence[Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0), pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("attempts", "executions", "model\ncalls", "tokens", "cost"):
        table.add_column(name, justify="right", vertical="bottom")
    table.add_column("ended", no_wrap=True)
    for number, run in enumerate(runs, 1):
        table.add_row(
            f"{number} {run.name}",
            *map(count, (run.attempts, run.executions, run.model_calls, run.total.tokens)),
            money(run.total.cost),
            run.ended,
        )
    return table
