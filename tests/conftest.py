"""What every test may ask for."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import brokers
from tests.brokers import Broker


def pytest_report_header() -> str:
    """Say in the first lines of a run which Kafka its tests use."""
    return f"kafka: {brokers.provider()}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker, shared by all tests of the run: make topics with names of your own, and leave it alive."""
    with started(lambda: brokers.shared_broker(tmp_path_factory.mktemp("kafka"))) as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    """Starts real brokers that this test alone uses, and so may kill."""
    with contextlib.ExitStack() as running:

        def start() -> Broker:
            directory = tmp_path / f"broker-{len(list(tmp_path.glob('broker-*')))}"
            directory.mkdir()
            return running.enter_context(started(lambda: brokers.private_broker(directory)))

        yield start


@contextlib.contextmanager
def started(start: Callable[[], Broker]) -> Iterator[Broker]:
    """Start a broker and release it in the end; without one, skip the test, but fail it in CI."""
    try:
        broker = start()
    except brokers.PrerequisiteError as missing:
        reason = f"no real Kafka for this test: {missing}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    try:
        yield broker
    finally:
        broker.release()
