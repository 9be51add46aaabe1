"""One real Apache Kafka broker on the local JVM, for tests and for work by hand. No Docker.

Maven fetches the jars named in ``pom.xml``; the broker is a single KRaft node that listens on the
loopback interface only. Everything about one broker lives in one directory, so whoever names that
directory can stop it, kill it, or start it again on the same records. Standard library only: it runs
before anything is installed.
"""

import argparse
import base64
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
WORK = HERE / ".work"

#: A fresh broker answers within 2 s on 2 idle cores; the rest is for a busy machine.
START_TIMEOUT_S = 90.0

#: A broker asked to stop hands over and closes its log within 3 s.
STOP_TIMEOUT_S = 30.0

#: Resident size is about 350 MB with these.
JVM_OPTIONS = ("-Xms256m", "-Xmx512m", "-XX:ActiveProcessorCount=2", "-XX:TieredStopAtLevel=1")

#: One node, small internal topics, and no topic that somebody did not make.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a crash the controller lets the broker in again when its old session has ended: 9 s by default.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}


class KafkaLocalError(Exception):
    """The broker does not do what it was asked to; the message says why and what to do."""


class PrerequisiteError(KafkaLocalError):
    """This machine lacks what a broker needs."""


class LocalBroker:
    """One broker and its directory.

    Args:
        directory: Holds settings, records, log and process id. Made when missing.
        port: Where clients connect, on 127.0.0.1.
        process_group: The group the broker joins, so that one signal ends it together with others.
            None gives it a session of its own: it then outlives the caller.
    """

    def __init__(self, directory: Path, port: int, process_group: int | None = None) -> None:
        self.directory = directory.resolve()
        self.port = port
        self._process_group = process_group
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the broker has printed, over all its starts."""
        return self.directory / "broker.log"

    def recorded_address(self) -> str:
        """Return the address for clients that the directory names, as of the latest start."""
        found = re.search(r"^advertised\.listeners=PLAINTEXT://(.+)$", self._settings_file.read_text(), re.MULTILINE)
        return found[1] if found else "an unknown address"

    def pid(self) -> int | None:
        """Return the process id of the running broker, or None when it does not run.

        A process id is used again by the system sooner or later, so one found in the directory counts only
        while its command line names this directory.
        """
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if str(self._settings_file) in command_line(pid) else None

    def start(self) -> None:
        """Start the broker on whatever its directory holds, and return when it serves clients.

        Raises:
            KafkaLocalError: If it already runs, its port is taken, Java or Maven is missing, or it does not
                answer within ``START_TIMEOUT_S``.
        """
        if (pid := self.pid()) is not None:
            raise KafkaLocalError(f"a broker already runs in {self.directory} (process {pid}). Stop it first.")
        if not port_is_free(self.port):
            raise KafkaLocalError(f"port {self.port} is taken by another program. Choose another one with --port.")
        java, jars = find_java(), class_path()
        self.directory.mkdir(parents=True, exist_ok=True)
        log_dir = self.directory / "records"
        settings = broker_settings(
            listen=self.bootstrap, advertise=self.bootstrap, controller=f"127.0.0.1:{free_port()}", log_dir=str(log_dir)
        )
        self._settings_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (log_dir / "meta.properties").exists():
            self._format(java, jars)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._jvm(java, jars), "kafka.Kafka", str(self._settings_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=self._process_group is None,
                process_group=self._process_group,
            )
        self._pid_file.write_text(str(self._process.pid))
        self._wait_until_it_serves(self._process)

    def stop(self) -> None:
        """Ask the broker to stop and wait for its end; kill it if it does not. No broker, no effect."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once, as a crash would (SIGKILL), and wait for its end."""
        self._end(signal.SIGKILL)

    @property
    def _settings_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _pid_file(self) -> Path:
        return self.directory / "broker.pid"

    def _jvm(self, java: str, jars: str) -> list[str]:
        return [java, *JVM_OPTIONS, f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}", "-cp", jars]

    def _format(self, java: str, jars: str) -> None:
        formatted = subprocess.run(
            [
                *self._jvm(java, jars),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster_id(),
                "-c",
                self._settings_file,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode != 0:
            raise KafkaLocalError(
                f"cannot format the storage in {self.directory}:\n{formatted.stdout}{formatted.stderr}"
                "Remove the directory if its records are not needed, or name another one."
            )

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not serves("127.0.0.1", self.port):
            if (status := process.poll()) is not None:
                raise KafkaLocalError(f"the broker ended with status {status}. {self._last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise KafkaLocalError(f"the broker did not answer within {START_TIMEOUT_S:.0f} s. {self._last_words()}")
            time.sleep(0.1)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The end of {self.log}:", *lines])

    def _end(self, how: signal.Signals) -> None:
        for sent in (how, signal.SIGKILL):
            if (pid := self.pid()) is not None:
                with contextlib.suppress(ProcessLookupError):  # It ended by itself a moment ago.
                    os.kill(pid, sent)
                self._wait_for_end(STOP_TIMEOUT_S)
        self._process = None
        self._pid_file.unlink(missing_ok=True)

    def _wait_for_end(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None and time.monotonic() < deadline:
            time.sleep(0.05)


def broker_settings(*, listen: str, advertise: str, controller: str, log_dir: str) -> dict[str, str]:
    """Return the settings of a broker; every address is ``host:port``.

    Args:
        listen: Where it takes connections of clients.
        advertise: Where it tells clients to connect.
        controller: Where its own controller listens.
        log_dir: Where it keeps its records.
    """
    return SETTINGS | {
        "listeners": f"PLAINTEXT://{listen},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertise}",
        "controller.quorum.voters": f"1@{controller}",
        "log.dirs": log_dir,
    }


def kafka_version() -> str:
    """Return the version of Apache Kafka that ``pom.xml`` pins."""
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)</version>", POM.read_text())
    if found is None:
        raise KafkaLocalError(f"{POM} names no version of kafka_2.13. Put the one to run there.")
    return found[1]


def serves(host: str, port: int, timeout_s: float = 5.0) -> bool:
    """Return whether a broker at this address serves clients.

    Asks for the metadata of no topic. An open port is not enough: a broker accepts connections before the
    controller lets it serve, and lists itself only after.
    """
    client_id = b"kafka-local"
    metadata, version, correlation = 3, 1, 7
    request = struct.pack(">hhih", metadata, version, correlation, len(client_id)) + client_id + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(12)
    except OSError:
        return False
    if len(answer) < 12:
        return False
    _size, echoed, brokers = struct.unpack(">iii", answer)
    return bool(echoed == correlation and brokers > 0)


def command_line(pid: int) -> str:
    """Return how a process was started, or nothing when there is no such process."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            return ""
    return subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that nothing listens on.

    Below the range from which the system takes ports for outgoing connections: a client that tries again
    while the broker is down must not be given the broker's own port.
    """
    candidates = random.sample(range(15_000, 32_000), k=100)
    for port in candidates:
        if port_is_free(port):
            return port
    raise KafkaLocalError("no free port between 15000 and 32000. Something on this machine opens very many.")


def cluster_id() -> str:
    """Return a new cluster id as Kafka writes them: 22 characters, none of them a leading dash."""
    while (fresh := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return fresh


def find_java() -> str:
    """Return the path of a Java 17 or newer: from JAVA_HOME if set, else from PATH.

    Raises:
        PrerequisiteError: If there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    remedy = "Install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
    if java is None:
        raise PrerequisiteError(
            f"Apache Kafka needs Java 17 or newer, and there is no java in {home or 'PATH'}. {remedy}"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < 17:
        raise PrerequisiteError(f"Apache Kafka needs Java 17 or newer, and {java} says: {told.strip()!r}. {remedy}")
    return java


def class_path() -> str:
    """Return the class path of the broker; the first time, and when ``pom.xml`` changes, Maven fetches it.

    Raises:
        PrerequisiteError: If Maven is missing or cannot fetch the jars.
    """
    WORK.mkdir(exist_ok=True)
    resolved = WORK / "class-path.txt"
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two test runs may start at the same time.
        if resolved.exists() and resolved.stat().st_mtime >= POM.stat().st_mtime:
            jars = resolved.read_text().strip()
            if all(map(os.path.exists, jars.split(os.pathsep))):
                return jars
        maven = shutil.which("mvn")
        if maven is None:
            raise PrerequisiteError(
                "Maven fetches Apache Kafka, and there is no mvn in PATH. Install it (Debian: apt-get install maven)."
            )
        fresh = WORK / "class-path.new"
        ran = subprocess.run(
            [
                maven,
                "-q",
                "-B",
                "-f",
                POM,
                "dependency:build-classpath",
                "-DincludeScope=runtime",
                f"-Dmdep.outputFile={fresh}",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            raise PrerequisiteError(
                f"Maven could not fetch Apache Kafka:\n{ran.stdout}{ran.stderr}"
                "Is the network there? Without one, tests can use a running broker: STREAMSCHED_TEST_KAFKA=host:port."
            )
        fresh.replace(resolved)
        return resolved.read_text().strip()


def main(arguments: list[str] | None = None) -> int:
    """Run one of the three commands; return the exit status."""
    parser = argparse.ArgumentParser(prog="kafka-local", description="One Apache Kafka broker on 127.0.0.1.")
    parser.add_argument("command", choices=["start", "stop", "status"])
    parser.add_argument("--port", type=int, default=9092, metavar="P", help="for start: where clients connect (9092)")
    parser.add_argument(
        "--dir", type=Path, default=WORK / "broker", metavar="D", help="where the broker lives (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    broker = LocalBroker(chosen.dir, chosen.port)
    try:
        match chosen.command:
            case "start":
                broker.start()
                print(f"Apache Kafka answers on {broker.bootstrap}; its log is {os.path.relpath(broker.log)}")
            case "stop":
                ran = broker.pid() is not None
                broker.stop()
                print("stopped" if ran else f"no broker runs in {os.path.relpath(broker.directory)}")
            case _:
                pid = broker.pid()
                if pid is None:
                    print(f"no broker runs in {os.path.relpath(broker.directory)}")
                    return 3
                print(f"process {pid} serves {broker.recorded_address()} from {os.path.relpath(broker.directory)}")
    except KafkaLocalError as error:
        print(f"kafka-local: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
