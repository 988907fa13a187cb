"""What a model call costs: what the provider reports, else the price list of `genai-prices`, which works offline.

The library is the extra `prices` and not part of the core: it takes 0.4 s to import and 0.2 s to load its 2,300 models
(1.7 MB), and needs an HTTP client. So it is loaded once, by `warm`, when a guard that has to know costs is made, and
not first on somebody's event loop. Its prices are best effort; what a provider reports is better and always wins.

Names of models are understood as SDKs write them: `gpt-5.4`, `gpt-4o-2024-08-06`, `openai:gpt-5.4`, `openai/gpt-4o`,
`openrouter/openai/gpt-4o`, `google_genai:gemini-2.5-pro`, `models/gemini-2.5-pro`. Not known, and so None: names of
deployments (Azure) that somebody chose, fine-tuned models (`ft:...`), local models, models newer than the list.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from loopguard_core._types import Usage

_log = logging.getLogger("loopguard")
_lock = threading.Lock()
_calculate: Callable[..., Any] | None = None
_missing = False

_MILLION = 1_000_000
_MAX_NAME = 200
_CACHED_MODELS = 1_000
"""Names from outside that are remembered; most are asked for again and again."""

# What SDKs and routers put before a provider's own name of a model, where the list has another word for it.
_PROVIDERS = {"azure_openai": "azure", "bedrock_converse": "aws", "models": "google", "vertex_ai": "google"}
_FINE_TUNED = "ft:"
_BEDROCK = re.compile(r"(?:[a-z-]{2,6}\.)?[a-z0-9]+\.[a-z][a-z0-9.-]*-v\d")


def warm() -> bool:
    """Load the price list, about 0.6 s the first time. Call it where a program starts, not on an event loop.

    Returns:
        Whether there is one: False without the extra `prices`.
    """
    global _calculate, _missing
    with _lock:
        if _calculate is None and not _missing:
            try:
                library = importlib.import_module("genai_prices")
                importlib.import_module("genai_prices.data_snapshot").get_snapshot()
            except ImportError:
                _missing = True
            else:
                _calculate = library.calc_price
        return _calculate is not None


def warm_soon() -> None:
    """Load the price list where a guard is made: at once, or in a thread where that would stop an event loop."""
    if loaded():
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        warm()
    else:
        threading.Thread(target=warm, name="loopguard-prices", daemon=True).start()


def loaded() -> bool:
    """Whether `price` answers at once."""
    return _calculate is not None or _missing


def price(model: str | None, usage: Usage, rate: Decimal | None = None) -> Decimal | None:
    """What a model call cost, in US dollars, exactly.

    Args:
        model: The model's name, where known.
        usage: What the provider reported. Tokens read from a cache and spent on reasoning are priced as such.
        rate: US dollars a million tokens, sent and received alike, for models without a price.

    Returns:
        The provider's own figure if it gave one; None where the price or the number of tokens is not known.
    """
    if usage.cost is not None:
        return usage.cost
    if usage.input_tokens is None or usage.output_tokens is None:
        return None if usage.total_tokens is None else _at(rate, usage.total_tokens)
    sent, received = usage.input_tokens, usage.output_tokens
    cost = _cost(
        model,
        input_tokens=sent,
        output_tokens=received,
        # A part cannot be more than the whole, whatever was reported.
        cache_read_tokens=min(sent, usage.cached_tokens or 0),
        output_reasoning_tokens=min(received, usage.reasoning_tokens or 0),
    )
    return _at(rate, sent + received) if cost is None else cost


def worst_case(
    model: str | None, input_tokens: int | None, max_output_tokens: int | None, rate: Decimal | None = None
) -> Decimal | None:
    """The most a model call can cost, in US dollars: nothing is read from a cache, and all it may say is said.

    Args:
        model: The model's name, where known.
        input_tokens: Tokens about to be sent.
        max_output_tokens: The most that may come back, reasoning included.
        rate: US dollars a million tokens, for models without a price.

    Returns:
        None where the price or one of the numbers is not known.
    """
    if input_tokens is None or max_output_tokens is None or input_tokens < 0 or max_output_tokens < 0:
        return None
    tokens = {"input_tokens": input_tokens, "output_tokens": max_output_tokens}
    # Some providers charge more for writing to a cache, and some for reasoning, than for plain tokens.
    dearer: tuple[dict[str, int], ...] = (
        {},
        {"output_reasoning_tokens": max_output_tokens},
        {"cache_write_tokens": input_tokens},
        {"cache_write_tokens": input_tokens, "cache_write_1h_tokens": input_tokens},
    )
    costs = [cost for extra in dearer if (cost := _cost(model, **tokens, **extra)) is not None]
    return max(costs, default=_at(rate, input_tokens + max_output_tokens))


def _at(rate: Decimal | None, tokens: int) -> Decimal | None:
    return None if rate is None else rate * tokens / _MILLION


def _cost(model: str | None, **tokens: int) -> Decimal | None:
    if not model or len(model) > _MAX_NAME or not warm():
        return None
    where = _listed(model)
    if where is None:
        return None
    name, provider = where
    return _asked(name, provider, **tokens)


@functools.lru_cache(_CACHED_MODELS)
def _listed(model: str) -> tuple[str, str | None] | None:
    """The model's name and provider as the list has them."""
    for name, provider in _readings(model):
        if _asked(name, provider, input_tokens=1, output_tokens=1) is not None:
            return name, provider
    return None


def _readings(model: str) -> Iterator[tuple[str, str | None]]:
    """What a name may mean: as it is, then with its first part read as the provider's, and so on inwards."""
    if model.lower().startswith(_FINE_TUNED):
        return
    rest = model
    # The provider first: "openai/gpt-4o" bought from OpenRouter may have another price than at OpenAI.
    for _ in range(3):
        cut = min((at for sign in ":/" if (at := rest.find(sign)) > 0), default=0)
        if not cut:
            break
        before, rest = rest[:cut].lower(), rest[cut + 1 :]
        yield rest, _PROVIDERS.get(before, before)
    yield model, None
    if _BEDROCK.match(model):
        yield model, "aws"


def _asked(name: str, provider: str | None, **tokens: int) -> Decimal | None:
    calculate = _calculate
    if calculate is None:
        return None
    try:
        # Any object with these attributes will do; the library's own type checks more, and warns.
        total = calculate(_Tokens(tokens), name, provider_id=provider).total_price
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        if not isinstance(error, LookupError):
            _log.debug("No price: %s", type(error).__name__)
        return None
    return total if isinstance(total, Decimal) and total.is_finite() and total >= 0 else None


class _Tokens:
    def __init__(self, tokens: dict[str, int]) -> None:
        self.__dict__.update(tokens)
