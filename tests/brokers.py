"""A real Apache Kafka for tests, from the first of three places that has one.

1. ``STREAMSCHED_TEST_KAFKA=host:port``: a broker that runs already; tests leave it running.
2. A Docker engine that answers: the image ``apache/kafka``, through testcontainers.
3. The local JVM: Apache Kafka from Maven artifacts, see ``deploy/kafka-local``.

Whatever is started here ends with the test run, even when that run is killed.
"""

import atexit
import contextlib
import functools
import gc
import os
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import docker
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

sys.path.append(str(Path(__file__).resolve().parent.parent / "deploy" / "kafka-local"))
import kafka_local

#: The broker can be killed, and what it acknowledged is there when it is started again.
KILL_DURABLE = "kill_durable"
#: The broker can be stopped and started at the same address.
RESTART = "restart"

#: A container's first start may pull its image.
CONTAINER_TIMEOUT_S = 180.0

#: Where the broker listens inside its container.
CONTAINER_PORT = 9092

PrerequisiteError = kafka_local.PrerequisiteError


class Broker(ABC):
    """A broker that serves clients at ``bootstrap``.

    All calls block; a coroutine runs them with ``asyncio.to_thread``.
    """

    #: Where it comes from, for people.
    provider: str
    #: What may be done to it: ``KILL_DURABLE``, ``RESTART``.
    capabilities: frozenset[str] = frozenset({KILL_DURABLE, RESTART})
    #: The address for clients, ``host:port``.
    bootstrap: str

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""

    @abstractmethod
    def restart(self) -> None:
        """Start it again after ``kill`` or ``stop``: same address, same records. Return when it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to end, and wait until it has."""

    def release(self) -> None:
        """Give up the broker and what it holds; it cannot be started again."""
        self.stop()


class GivenBroker(Broker):
    """A broker that somebody else runs: it can be used, not killed.

    Raises:
        ConnectionError: If no broker serves at the address.
    """

    capabilities = frozenset()

    def __init__(self, address: str) -> None:
        self.provider = f"given by STREAMSCHED_TEST_KAFKA ({address})"
        self.bootstrap = address
        host, _, port = address.partition(",")[0].rpartition(":")
        if not (host and port.isdigit() and kafka_local.serves(host, int(port))):
            raise ConnectionError(
                f"STREAMSCHED_TEST_KAFKA names {address!r}, and no Kafka serves there. "
                "Start it, correct the address (host:port), or unset the variable."
            )

    def kill(self) -> None:
        raise RuntimeError(f"the broker {self.provider} is not ours to kill: take own_broker")

    def restart(self) -> None:
        raise RuntimeError(f"the broker {self.provider} is not ours to restart: take own_broker")

    def stop(self) -> None:
        raise RuntimeError(f"the broker {self.provider} is not ours to stop: take own_broker")

    def release(self) -> None:
        """Leave it running."""


class ContainerBroker(Broker):
    """A broker in a container of the image ``apache/kafka``."""

    def __init__(self) -> None:
        image = container_image()
        self.provider = f"testcontainers, {image}"
        self._host, self._port = DockerClient().host(), kafka_local.free_port()
        self.bootstrap = f"{self._host}:{self._port}"
        self._container = DockerContainer(image).with_bind_ports(CONTAINER_PORT, self._port)
        for name, value in container_environment(self.bootstrap).items():
            self._container.with_env(name, value)
        self._container.start()
        self._wait_until_it_serves()

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        self._container.get_wrapped_container().start()
        self._wait_until_it_serves()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def release(self) -> None:
        self._container.stop()  # Removes the container too.

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + CONTAINER_TIMEOUT_S
        while not kafka_local.serves(self._host, self._port):
            if time.monotonic() > deadline:
                output, errors = self._container.get_logs()
                self._container.stop()
                raise TimeoutError(f"{self.provider} serves nobody at {self.bootstrap}:\n{(output + errors).decode()}")
            time.sleep(0.2)


class JvmBroker(Broker):
    """A broker on the local JVM.

    Raises:
        PrerequisiteError: If Java or Maven is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.provider = jvm_provider()
        self._broker = kafka_local.LocalBroker(directory, kafka_local.free_port(), group_that_ends_with_us())
        self.bootstrap = self._broker.bootstrap
        self._broker.start()

    def kill(self) -> None:
        self._broker.kill()

    def restart(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()


def shared_broker(directory: Path) -> Broker:
    """Return a broker for many tests, from the first place that has one.

    Raises:
        PrerequisiteError: If no place has one.
        ConnectionError: If the named one does not serve.
    """
    address = os.environ.get("STREAMSCHED_TEST_KAFKA")
    return GivenBroker(address) if address else private_broker(directory)


def private_broker(directory: Path) -> Broker:
    """Return a broker that the caller may kill; never the given one, which others may use.

    Raises:
        PrerequisiteError: If there is neither Docker nor Java and Maven.
    """
    return ContainerBroker() if docker_answers() else JvmBroker(directory)


def provider() -> str:
    """Say where ``shared_broker`` would take a broker from, without starting one."""
    if address := os.environ.get("STREAMSCHED_TEST_KAFKA"):
        return f"given by STREAMSCHED_TEST_KAFKA ({address})"
    if docker_answers():
        return f"testcontainers, {container_image()}"
    try:
        kafka_local.find_java()
    except PrerequisiteError as error:
        return f"none. {error}"
    return jvm_provider()


def jvm_provider() -> str:
    """Name the broker on the local JVM, for people."""
    return f"Apache Kafka {kafka_local.kafka_version()} on the local JVM"


def container_image() -> str:
    """Return the image of the version that also the local JVM runs."""
    return f"apache/kafka:{kafka_local.kafka_version()}"


def container_environment(advertise: str) -> dict[str, str]:
    """Return the settings of a broker as the image reads them: ``node.id`` is ``KAFKA_NODE_ID``."""
    settings = kafka_local.broker_settings(
        listen=f"0.0.0.0:{CONTAINER_PORT}",
        advertise=advertise,
        controller="localhost:9093",
        log_dir="/tmp/kraft-combined-logs",
    )
    return {"KAFKA_" + name.upper().replace(".", "_"): value for name, value in settings.items()}


@functools.cache
def docker_answers() -> bool:
    """Return whether a Docker engine answers, where the environment says it is."""
    with warnings.catch_warnings():
        # When nobody answers, the docker package leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(docker.from_env(timeout=5)) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False
        finally:
            gc.collect()


@functools.cache
def group_that_ends_with_us() -> int:
    """Return a process group whose processes are killed when this process ends, however it ends.

    Its leader waits for the end of a pipe that only this process holds open, then kills the group. That
    holds after SIGKILL, for processes started from any thread, and on every Unix.
    """
    leader = subprocess.Popen(
        ["/bin/sh", "-c", "read _; kill -KILL 0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )

    @atexit.register
    def end_the_group() -> None:
        assert leader.stdin is not None
        leader.stdin.close()
        leader.wait()

    return leader.pid
