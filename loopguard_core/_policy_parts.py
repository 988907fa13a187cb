"""The tables of a policy: one small model each, every value checked, nothing resolved yet."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    WithJsonSchema,
)

from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS, FOLLOWING_ROWS, MOST, LadderSettings
from loopguard_core._masking import MASKS, MaskName
from loopguard_core._types import Channel

LoopKeyFunction = Callable[[Any], Any]
Normalization = Literal["nfkc", "casefold", "whitespace", "punctuation"]
Trait = Literal["reads", "mutates", "tests", "polls", "waits", "searches", "delegates", "exempt"]


_MOST_A_MILLION = 1_000_000
"""US dollars for a million tokens; more is a slip of the pen."""

_LONGEST_NAME = 60
"""Characters of a name that an error repeats."""


def _dollars(value: Any) -> Decimal:
    # Through str, so that 0.1 stays 0.1 and not the nearest binary fraction.
    if isinstance(value, int | float | str | Decimal) and not isinstance(value, bool):
        try:
            amount = Decimal(value if isinstance(value, int) else str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if amount.is_finite() and amount > 0:
            return amount
    raise ValueError("must be an amount in US dollars above 0, a plain number such as 0.50")


def _unpriced(value: Any) -> Literal["warn", "deny"] | Decimal:
    if value in ("warn", "deny"):
        return value  # type: ignore[no-any-return]  # narrowed to the two by the line above
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        amount = Decimal(str(value)) if not isinstance(value, int) or abs(value) < _MOST_A_MILLION else Decimal("NaN")
        if amount.is_finite() and 0 <= amount < _MOST_A_MILLION:
            return amount
    raise ValueError(
        'must be "warn", "deny", or US dollars per million tokens: 0 or more, a plain number such as 15.00'
    )


def _seconds(value: Any) -> float:
    # Decimal: the policy file is read with decimal numbers, for the sake of the amounts in it.
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if math.isfinite(seconds) and seconds > 0:
            return seconds
    raise ValueError("must be a number of seconds above 0, without quotes")


def _loop_key(value: Any) -> tuple[str, ...] | Literal[False] | LoopKeyFunction | None:
    if value is None or value is False or callable(value):
        return value  # type: ignore[no-any-return]  # narrowed to the three by the line above
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    named = isinstance(value, str) and value.isidentifier() and len(value) <= _LONGEST_NAME
    fix = f'write ["{value}"]' if named else 'for example ["query"]'
    raise ValueError(
        f"must be a list of argument names ({fix}), or false to exempt the tool; leave it out to count all arguments"
    )


def _loop_key_to_json(value: Any) -> Any:
    if callable(value):
        return f"<function {getattr(value, '__qualname__', type(value).__qualname__)}>"
    return list(value) if isinstance(value, tuple) else value


def _result_key(value: Any) -> tuple[str, ...] | LoopKeyFunction | None:
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]  # narrowed to the two by the line above
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    raise ValueError('must be a list of field names, for example ["status"]; leave it out to count the whole result')


def _mask(value: Any) -> Any:
    if callable(value) or value in MASKS:
        return value
    near = difflib.get_close_matches(str(value), MASKS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"there is no such masker; {hint}known: {', '.join(MASKS)}")


def _key_name(name: str) -> str:
    from loopguard_core.keys._names import check_name  # only where a policy has a key: it loads SQLite

    try:
        return check_name(name)
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _key_store(address: str) -> str:
    from loopguard_core.keys._open import check_address

    try:
        check_address(address)
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    return address


def _detector_name(name: str) -> str:
    """Accept the detectors there are, their rows, and names that cannot be a slip of the pen for one of them."""
    if name in DETECTORS or name in DEFAULT_LADDERS or name in FOLLOWING_ROWS:
        return name
    detector = name.partition(".")[0]
    kinds = [row for row in (*DEFAULT_LADDERS, *FOLLOWING_ROWS) if row.startswith(f"{detector}.")]
    # Other detectors come from plugins that may not be loaded here, so an unknown name alone is no error.
    near = difflib.get_close_matches(name, [*DETECTORS, *DEFAULT_LADDERS], n=1, cutoff=0.8)
    if near or detector in DETECTORS:
        known = kinds if "." in name and kinds else list(DETECTORS)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no such detector; {hint}known: {', '.join(known)}")
    return name


Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Dollars = Annotated[
    Decimal,
    BeforeValidator(_dollars),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
Unpriced = Annotated[
    Literal["warn", "deny"] | Decimal,
    PlainValidator(_unpriced),
    PlainSerializer(str, return_type=str, when_used="json"),  # as other amounts; else pydantic warns of the text
    WithJsonSchema({"anyOf": [{"enum": ["warn", "deny"]}, {"type": "number", "minimum": 0}]}),
]
Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
LoopKey = Annotated[
    tuple[str, ...] | Literal[False] | LoopKeyFunction | None,
    PlainValidator(_loop_key),
    PlainSerializer(_loop_key_to_json, return_type=Any, when_used="json"),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}, {"const": False}]}
    ),
]
ResultKey = Annotated[
    tuple[str, ...] | LoopKeyFunction | None,
    PlainValidator(_result_key),
    PlainSerializer(_loop_key_to_json, return_type=Any, when_used="json"),
    WithJsonSchema({"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}),
]
Mask = Annotated[
    MaskName | Callable[[str], str],
    PlainValidator(_mask),
    PlainSerializer(_loop_key_to_json, return_type=Any, when_used="json"),
    WithJsonSchema({"enum": list(MASKS)}),
]
DetectorName = Annotated[Text, AfterValidator(_detector_name)]


class Settings(BaseModel):
    """Base of the tables: frozen, and an unknown key is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DetectorSettings(Settings):
    """`[detectors.NAME]`: one detector, or one row of it (`[detectors."repeated_call.poll"]`)."""

    enabled: Flag = True
    """False switches the detector off; for a row, every rung of that row."""
    ladder: LadderSettings = LadderSettings()
    """Rungs that differ from the detector's defaults."""


class Limits(Settings):
    """`[limits]`: hard caps on one session. None, the default of each cap, is no cap."""

    turns: Count | None = None
    """Rounds of tool calls, refused ones included. After the last one no further model call starts."""
    cost: Dollars | None = None
    """US dollars. No model call starts once this much is spent."""
    tokens: Count | None = None
    """Input and output tokens together, cached ones included."""
    seconds: Seconds | None = None
    """Active time in seconds; waiting for a human does not count."""
    tool_calls: Count | None = None
    """Tool calls let through. Further calls of a round are refused in order."""
    reserve: Flag = False
    """True starts no model call whose worst case does not fit in what is left of `cost` and `tokens`. False stops
    once the cap is reached, so that the last call may go beyond it."""
    unpriced: Unpriced = "warn"
    """What becomes of model calls whose cost nobody knows: `warn` says so once and counts nothing, `deny` starts no
    model call after one, and a number is their price in US dollars per million tokens, sent and received alike."""


class ToolSettings(Settings):
    """`[tools."PATTERN"]`: one tool, or all whose name matches a pattern with `*`, `?` or `[...]`."""

    loop_key: LoopKey = None
    """Names of the arguments that identify a call; False exempts the tool. None, the default, counts all
    arguments. In code also a function of the arguments."""
    normalize: tuple[Normalization, ...] = ()
    """What to even out before two values are compared. None of it by default."""
    traits: tuple[Trait, ...] = ()
    """What kind of tool it is, where its name and results do not say."""
    maskers: tuple[Mask, ...] | None = None
    """What of its results changes by itself and is masked before two are compared: names from the table in
    `docs/outcomes.md`. None, the default, masks all of them; an empty list none, where the timestamp is the payload. In
    code also functions of the result's text."""
    result_key: ResultKey = None
    """Names of the fields of its JSON results that count. None, the default, counts all. In code also a function of
    the result."""
    ladder: LadderSettings = LadderSettings()
    """Rungs for this tool's calls. They beat the detector's; `block` and `stop` only where the row has them by default,
    because other evidence is no proof."""

    def merged(self, stronger: ToolSettings) -> ToolSettings:
        """These settings with what `stronger` was given written over them; ladders are merged rung by rung."""
        given: Mapping[str, Any] = {name: getattr(stronger, name) for name in stronger.model_fields_set}
        return self.model_copy(update={**given, "ladder": self.ladder.merged(stronger.ladder)} if given else None)


class TextSettings(Settings):
    """`[text]`: what of the streamed text is checked."""

    min_chars: CountOrZero = 512
    """Characters of a message before anything is judged."""
    channels: tuple[Channel, ...] = ("content", "reasoning")
    """Which streams are checked."""
    retries: CountOrZero = 1
    """How often a stream is cut and the model steered before the run is ended."""


class EscalationSettings(Settings):
    """`[escalation]`: the stronger model, and how often it may be asked."""

    max: CountOrZero = 2
    """Escalated model calls per session."""
    models: dict[Text, Text] = Field(default_factory=dict)
    """The model for each SDK: `langchain`, `openai_agents`, `llama_index`."""


class OnStopSettings(Settings):
    """`[on_stop]`: how a run ends. An adapter's own argument wins."""

    how: Literal["end", "answer", "raise"] = "end"
    """`end` closes the run with a message, `answer` allows one last model call without tools, `raise` raises."""


class KeySettings(Settings):
    """`[key]`: a spending limit shared by every session, process and machine that uses the key."""

    name: Annotated[Text, AfterValidator(_key_name)]
    """Name of the key."""
    limit: Dollars | None = None
    """US dollars per period; it is set whenever a guard with this policy first spends. None leaves the key's limit as
    `loopguard key set` has it; a key without one is counted and not limited."""
    reset: Literal["daily", "weekly", "monthly", "none"] = "none"
    """When the period starts afresh, in UTC; a week starts on Monday."""
    # Not shown, because a Redis address may hold a password.
    store: Annotated[Text, AfterValidator(_key_store)] | None = Field(default=None, repr=False)
    """Where spending is kept: `sqlite:///FILE` or `redis://HOST/0`. A relative file in a policy file is taken from that
    file's directory. None: `sqlite:///~/.loopguard/keys.db`."""
    on_store_error: Literal["deny", "allow"] = "deny"
    """What happens to model calls while the store cannot be reached."""


class PrivacySettings(Settings):
    """`[privacy]`: what may leave the process."""

    include_arguments: Flag = False
    """Put the arguments of calls into events."""
    include_results: Flag = False
    """Put what calls returned into events."""
    fingerprint_key: Annotated[SecretStr, Field(strict=False, min_length=1)] | None = None
    """Key for the fingerprints that leave the process. None: a random one per process."""
    plain_fingerprints: Flag = False
    """Fingerprints without a key: comparable everywhere, but small arguments can be guessed from them."""
