"""Chat models whose stream is read while it runs, and closed where that is to end.

The seam is `_stream` and `_astream`, which every way to stream goes through. A tapped model is an object of a subclass
that shares the state of the original one: fields, counters and clients are the same, whoever changes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import lru_cache, wraps
from typing import Any, Protocol, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.errors import GraphBubbleUp

_TAP = "loopguard_tap"
_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")

M = TypeVar("M", bound=BaseChatModel)


class Cut(GraphBubbleUp):
    """Ends a model call in the middle of its stream; retries and fallbacks let it through.

    Args:
        tap: Who cut it.
    """

    def __init__(self, tap: Tap) -> None:
        super().__init__("loopguard cut a stream that repeats itself")
        self.tap = tap


class Tap(Protocol):
    """Reads one model call."""

    def begin(self) -> bool:
        """A stream starts; False to let it pass unread."""
        ...

    def read(self, message: BaseMessage) -> bool:
        """Read a piece; True if the stream is to be closed behind it."""
        ...

    def last_words(self) -> str | None:
        """What consumers of a closed stream are told at its end."""
        ...

    def end(self, *, complete: bool) -> None:
        """The stream is over; not complete if an error ended it, or whoever read it lost interest."""
        ...

    def failed(self, error: Exception) -> None:
        """The model raised; somebody between it and us may make something else of that."""
        ...


def tapped(model: M, tap: Tap) -> M:
    """The model, read by a tap."""
    twin: Any = object.__new__(_tapped_class(type(model)))
    for name in _STATE:
        object.__setattr__(twin, name, getattr(model, name))
    object.__setattr__(twin, _TAP, tap)
    return cast("M", twin)


@lru_cache(maxsize=256)
def _tapped_class(kind: type[BaseChatModel]) -> type[BaseChatModel]:
    # Only what a class can do itself: LangChain looks at which of the two are there.
    body: dict[str, Any] = {"__slots__": (_TAP,)}
    body |= {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body["_generate"] = _generate_of(kind)
    if kind._agenerate is not BaseChatModel._agenerate:  # noqa: SLF001  # the interface of a chat model
        body["_agenerate"] = _agenerate_of(kind)
    if kind._stream is not BaseChatModel._stream:  # noqa: SLF001
        body["_stream"] = _stream_of(kind)
    if kind._astream is not BaseChatModel._astream:  # noqa: SLF001
        body["_astream"] = _astream_of(kind)
    make: Any = type(kind)
    made: type[BaseChatModel] = make(kind.__name__, (kind,), body)
    return made


def _generate_of(kind: type[BaseChatModel]) -> Any:
    @wraps(kind._generate)  # noqa: SLF001  # LangChain looks at its parameters
    def _generate(self: BaseChatModel, *args: Any, **kwargs: Any) -> ChatResult:
        try:
            return kind._generate(self, *args, **kwargs)  # noqa: SLF001
        except Exception as error:
            _failed(self, error)
            raise

    return _generate


def _agenerate_of(kind: type[BaseChatModel]) -> Any:
    @wraps(kind._agenerate)  # noqa: SLF001
    async def _agenerate(self: BaseChatModel, *args: Any, **kwargs: Any) -> ChatResult:
        try:
            return await kind._agenerate(self, *args, **kwargs)  # noqa: SLF001
        except Exception as error:
            _failed(self, error)
            raise

    return _agenerate


def _failed(model: BaseChatModel, error: Exception) -> None:
    tap: Tap | None = getattr(model, _TAP, None)
    if tap is not None:
        tap.failed(error)


def _stream_of(kind: type[BaseChatModel]) -> Any:
    def _stream(self: BaseChatModel, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        upstream = kind._stream(self, *args, **kwargs)  # noqa: SLF001
        with _reading(self) as tap:
            if tap is None:
                yield from upstream
                return
            chunk = None
            with closing(_closable(upstream)):
                for chunk in upstream:
                    if tap.read(chunk.message):
                        break
                    yield chunk
                else:
                    return
        yield from _end(tap, chunk)

    return _stream


def _astream_of(kind: type[BaseChatModel]) -> Any:
    async def _astream(self: BaseChatModel, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        upstream = kind._astream(self, *args, **kwargs)  # noqa: SLF001
        with _reading(self) as tap:
            chunk = None
            async with aclosing(_closable(upstream)):
                async for chunk in upstream:
                    if tap is not None and tap.read(chunk.message):
                        break
                    yield chunk
                else:
                    return
        if tap is not None:
            for last in _end(tap, chunk):
                yield last

    return _astream


@contextmanager
def _reading(model: BaseChatModel) -> Iterator[Tap | None]:
    """The tap, unless another stream of the model runs: some implement one of the two by the other."""
    tap: Tap | None = getattr(model, _TAP, None)
    if tap is None or not tap.begin():
        yield None
        return
    complete = False
    try:
        yield tap
        complete = True
    except Exception as error:
        tap.failed(error)
        raise
    finally:
        tap.end(complete=complete)


def _end(tap: Tap, chunk: ChatGenerationChunk | None) -> Iterator[ChatGenerationChunk]:
    """What consumers see of a stream after it was closed."""
    if chunk is not None:
        yield chunk
    words = tap.last_words()
    if words is not None:
        yield ChatGenerationChunk(message=AIMessageChunk(content=words, id=None if chunk is None else chunk.message.id))
    raise Cut(tap)


class _Harmless:
    """Stands in where a stream is no generator and has nothing to close."""

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def _closable(stream: Any) -> Any:
    return stream if hasattr(stream, "close") or hasattr(stream, "aclose") else _Harmless()
