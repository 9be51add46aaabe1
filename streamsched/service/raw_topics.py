"""Topics as Faust agents read them here: bytes, which we decode ourselves, since Faust loses what it cannot decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faust.types import AppT, TopicT


def raw_topic(app: AppT, *names: str, acks: bool = True) -> TopicT:
    """Return the channel of one or more topics of raw bytes.

    Args:
        app: Whose consumer group reads them.
        names: Full names.
        acks: Whether Faust commits offsets; without, nothing is committed but what we commit.
    """
    return app.topic(*names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=acks)
