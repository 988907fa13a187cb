"""HTML in which nothing can be forgotten to be escaped: text is escaped unless it was made here."""

from __future__ import annotations

from html import escape

from loopguard_core._identity import display_name

_VOID = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is HTML already. Only `el` and `joined` make it."""

    __slots__ = ()


def el(name: str, /, *content: str | None, **attributes: str | float | bool | None) -> Markup:
    """One element.

    Args:
        name: Of the element.
        content: What is in it; text is escaped, None left out.
        attributes: `class_` is `class`, other underscores are hyphens, values are escaped; None and False are left out,
            True has no value.
    """
    listed = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{listed}>" if name in _VOID else f"<{name}{listed}>{joined(*content)}</{name}>")


def joined(*content: str | None) -> Markup:
    """Pieces one after the other; text is escaped."""
    return Markup("".join(piece if isinstance(piece, Markup) else _text(piece) for piece in content if piece))


def name_of(value: object, kind: str = "code") -> Markup:
    """A name from outside: at most 64 printable characters, kept from turning the direction of what is around it."""
    return el("bdi", el(kind, display_name(value)))


def cut(text: str, most: int) -> str:
    """At most so many characters, all printable but for line ends."""
    kept = text[: most + 1]
    shown = "".join(char if char.isprintable() or char == "\n" else "?" for char in kept)
    return shown if len(kept) <= most else shown[: most - 1] + "…"


def _text(text: str) -> str:
    # Half a character cannot be written as UTF-8.
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _attribute(key: str) -> str:
    return {"viewBox": key, "preserveAspectRatio": key}.get(key) or key.rstrip("_").replace("_", "-")
