"""Text from the other side of a link, for messages and terminals."""

from __future__ import annotations


def printable(text: str, longest: int = 500) -> str:
    """The text with escapes for control characters and for those that turn its direction, cut where it is too long."""
    found = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text[:longest]
    )
    return found if len(text) <= longest else f"{found}..."
