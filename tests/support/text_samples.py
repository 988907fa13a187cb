"""For the tests of streamed text: healthy texts of many kinds, loops, and how a message is read."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable
from typing import Any

from loopguard_core import Finding
from loopguard_core.detectors.text_repetition import TextRepetition

WORDS = (
    "amber", "river", "stone", "cloud", "maple", "copper", "engine", "garden", "winter", "signal", "harbor",
    "mirror", "pocket", "lantern", "bridge", "cotton", "velvet", "shadow", "timber", "marble",
)  # fmt: skip

LINES = ("好的，我明白了。", "什么时候开始？", "请稍等一下。", "资料发给你了。")

PREAMBLE = (
    "Here is what you asked for. I checked the three files and the numbers agree with the report from last week, so "
    "this is the complete output of the run as it was printed, with nothing left out and nothing added to it.\n\n"
)


def prose(chars: int, seed: int = 1) -> str:
    """Sentences that do not repeat themselves."""
    rng = random.Random(seed)
    text = ""
    while len(text) < chars:
        count = rng.randint(6, 14)
        words = ["".join(rng.choice("aeioubcdfglmnprst") for _ in range(rng.randint(2, 9))) for _ in range(count)]
        text += " ".join(words).capitalize() + ". "
    return text[:chars]


def healthy() -> dict[str, str]:
    """Repetition that somebody asked for, or that a tool printed, by kind."""
    rng = random.Random(4)
    word = lambda: rng.choice(WORDS)  # noqa: E731
    return {
        "progress bar": "".join(f"\r[{'#' * (i // 2)}{' ' * (50 - i // 2)}] {i}%" for i in range(101)),
        "progress lines": "".join(f"model.bin: {i:3d}%|{'█' * (i // 5):20}| {2 * i}/200 MB\n" for i in range(100)),
        "verbose tests": "".join(
            f"tests/test_io.py::test_case_{i:03d} PASSED         [{i // 2:3d}%]\n" for i in range(200)
        ),
        "parametrised tests": "".join(f"tests/test_io.py::test_round[{i}] PASSED\n" for i in range(150)),
        "dots of a test run": f"tests/test_io.py {'.' * 480} [100%]\n",
        "tap": "".join(f"ok {i} - handles the empty input\n" for i in range(120)),
        "go test": "".join(f"--- PASS: TestThing/case_{i} (0.00s)\n" for i in range(120)),
        "log with steps": "".join(f"INFO worker finished step {i} of 300\n" for i in range(100)),
        "log with times": "".join(
            f"[2026-01-02 10:{i // 60:02d}:{i % 60:02d}] INFO heartbeat ok seq={i} latency={rng.randint(1, 9)}ms\n"
            for i in range(150)
        ),
        "numbered list": "".join(f"{i}. {word()} {word()} the {word()}\n" for i in range(100)),
        "counting song": "".join(
            f"{i} bottles of beer on the wall, {i} bottles of beer.\n"
            f"Take one down and pass it around, {i - 1} bottles of beer on the wall.\n\n"
            for i in range(99, 40, -1)
        ),
        "hex dump of zeros": "".join(f"{16 * i:08x}  {'00 ' * 16} |................|\n" for i in range(60)),
        "hex dump": "".join(f"{16 * i:08x}  {rng.randbytes(16).hex(' ')}\n" for i in range(60)),
        "rows of zeros in code": f"static const uint8_t t[] = {{\n{('  ' + '0x00, ' * 16 + chr(10)) * 20}}};",
        "base64": base64.encodebytes(rng.randbytes(3000)).decode(),
        "json rows": "["
        + ",\n".join(json.dumps({"id": i, "name": f"item {i}", "status": "active", "tags": []}) for i in range(100))
        + "]",
        "json rows of nothing": "["
        + ",\n".join(json.dumps({"id": i, "value": None, "error": None, "retries": 0, "ok": True}) for i in range(100))
        + "]",
        "csv": "".join(f"{i},{word()},{word()},0,0,0\n" for i in range(150)),
        "empty table": "| Name | Owner | Due |\n|---|---|---|\n" + "|      |      |      |\n" * 40,
        "table to fill in": "| a | b |\n|---|---|\n" + "".join(f"| {word()} | TODO |\n" for _ in range(60)),
        "check list": "".join(f"- [ ] {word()} {word()}\n" for _ in range(80)),
        "separators": "\n".join(f"{'=' * 80}\n{word()}\n{'=' * 80}" for _ in range(30)),
        "box": f"+{'-' * 200}+\n" + f"|{' ' * 200}|\n" * 4 + f"+{'-' * 200}+",
        "diff": "".join(
            f"@@ -{9 * i},3 +{9 * i},3 @@\n def f{i}(self):\n-    return self.old\n+    return self.new\n"
            for i in range(60)
        ),
        "minified": "!function(){"
        + "".join(f"e.{word()}=function(t){{return t&&n.{word()}(t,!0)}};" for _ in range(99)),
        "style sheet": "".join(f".mt-{i}{{margin-top:{4 * i}px}}\n" for i in range(120)),
        "utility classes": "".join(
            f'<div class="flex items-center justify-between p-4 border rounded-lg"><b>{word()}</b></div>\n'
            for _ in range(40)
        ),
        "laughter": f"That was great. {'haha' * 40} anyway, here is the answer.",
        "chorus three times": (
            "The wind is on the water and the night is on the hill,\nthe lamps along the harbor road are bright,\n"
            "so carry me and marry me and bury me at sea,\nand nobody in all the world shall sing so loud as me.\n\n"
        )
        * 3,
        "round five times": "Row the boat across the bay, row it home again,\nsing it in the sun and in the rain.\n\n"
        * 5,
        "poem in chinese": "山中有雪，灯下无人，旧信压在书里。\n河上有风，桥边有客，晚钟落在雾里。\n\n" * 4,
        "counting": ", ".join(map(str, range(1, 1500))),
        "multiplication tables": "\n".join(
            "  ".join(f"{a} x {b} = {a * b}" for b in range(1, 11)) for a in range(1, 21)
        ),
        "matrix of zeros": "\n".join([" ".join("0" * 30)] * 30),
        "ascii art": "".join(f"{' ' * (30 - i)}/{'*' * (2 * i)}\\\n" for i in range(30)) + f"|{' ' * 58}|\n" * 10,
        "yaml": "".join(
            f"- name: node-{i}\n  image: nginx:1.25\n  replicas: 2\n  resources:\n    cpu: 100m\n" for i in range(40)
        ),
        "xml rows": "".join(f"  <row><id>{i}</id><v>0</v><state>ok</state></row>\n" for i in range(120)),
        "sql": "".join(f"INSERT INTO t (id, name, active) VALUES ({i}, 'user{i}', TRUE);\n" for i in range(90)),
        "assertions": "".join(f"assert add({i}, {i + 1}) == {2 * i + 1}\n" for i in range(120)),
        "listing": "".join(f"-rw-r--r-- 1 root root {rng.randint(1, 9999):5d} file_{i:03d}.txt\n" for i in range(100)),
        "ping": "".join(
            f"64 bytes from 10.0.0.1: icmp_seq={i} ttl=64 time=0.{rng.randint(100, 999)} ms\n" for i in range(99)
        ),
        "empty lines": "a" + "\n" * 300 + "b",
        "dialogue in chinese": "".join(f"{rng.choice('甲乙丙')}：{rng.choice(LINES)}\n" for _ in range(120)),
        "litany": "".join(f"Saint {word().title()}, pray for us.\n" for _ in range(60)),
        "letters of one template": "".join(
            f"Dear {a.title()},\n\nThank you for your order of the {b}. We have received your payment and will ship it "
            "on Monday. You will get a message as soon as it is on its way.\n\nKind regards,\nThe shop\n\n---\n\n"
            for a, b in zip(WORDS, reversed(WORDS), strict=True)
        ),
    }


def plan(chars: int = 2120) -> str:
    rng = random.Random(7)
    steps = (
        f"{n}. {rng.choice(['Read', 'Check', 'Open', 'Trace'])} the {rng.choice(WORDS)} {rng.choice(WORDS)}, then "
        f"compare it with the {rng.choice(WORDS)} setting and note what differs from {rng.choice(WORDS)}.\n"
        for n in range(1, 99)
    )
    return "".join(steps)[:chars]


def paraphrase(chars: int = 5000) -> str:
    rng = random.Random(3)
    stock = [
        "I will start now.",
        "Let me begin.",
        "Writing the code.",
        "On it.",
        "Okay, going.",
        "Here we go.",
        "Building.",
    ]
    return " ".join(rng.choice(stock) for _ in range(chars // 12))


def read(text: str, size: int = 64, detector: TextRepetition | None = None, channel: Any = "content") -> list[Finding]:
    """One message, cut into pieces of `size` characters; 0 feeds it whole."""
    detector = detector or TextRepetition()
    size = size or max(1, len(text))
    found = [detector.feed_text(text[at : at + size], channel) for at in range(0, len(text), size)]
    return [finding for finding in [*found, detector.end_message(None)] if finding is not None]


def cuts(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.abort]


def told(found: Iterable[Finding]) -> list[Finding]:
    """Findings of which the model hears: the passage rule only observes."""
    return [finding for finding in found if finding.kind != "passage"]
