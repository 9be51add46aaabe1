"""Are heartbeats read whole or refused with the reason?"""

from __future__ import annotations

import pytest

from streamsched.errors import WireError
from streamsched.model.events import NodeHealth
from streamsched.wire.heartbeats import Heartbeat, decode_heartbeat, encode_heartbeat


def test_a_heartbeat_comes_back_as_it_was_sent() -> None:
    """With everything in it, or with as little as there may be."""
    least = Heartbeat(node="n1", boot="b", health=NodeHealth.HEALTHY, at_ms=0)
    most = Heartbeat(
        node="n1", boot="b", health=NodeHealth.UNHEALTHY, reason="GPU 2 is gone", at_ms=1, watermark="4711/0"
    )

    assert [decode_heartbeat(encode_heartbeat(heartbeat)) for heartbeat in (least, most)] == [least, most]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "heartbeat"),
        (b'{"node":"n1","boot":"b","health":"lost","at_ms":1}', "health"),
        (b'{"node":"n 1","boot":"b","health":"healthy","at_ms":1}', "node"),
        (b'{"node":"n1","boot":"b","health":"healthy","at_ms":1.5}', "at_ms"),
        (b'{"node":"n1","boot":"b","health":"healthy","at_ms":1,"temperature":1}', "temperature"),
    ],
)
def test_anything_else_is_refused_with_the_field(data: bytes, said: str) -> None:
    """That a node is lost is for others to say, and a misspelt field would be a wish that does not come true."""
    with pytest.raises(WireError, match=said):
        decode_heartbeat(data)
