"""Do settings say what is wrong with them, and never what is secret?"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from streamsched.errors import ConfigurationError
from streamsched.service.settings import Role, ServiceSettings, load_settings


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServiceSettings.model_fields:
        monkeypatch.delenv(f"STREAMSCHED_{name.upper()}", raising=False)
    monkeypatch.delenv("STREAMSCHED_CONFIG", raising=False)


def given(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"STREAMSCHED_{name.upper()}", value)


def test_without_anything_one_process_does_everything_on_loopback() -> None:
    """The defaults are a developer's machine."""
    settings = load_settings()

    assert settings.roles == (Role.INTAKE, Role.HEALTH, Role.SCHEDULER, Role.VIEWS)
    assert settings.host == "127.0.0.1"
    assert settings.kafka_security() == {"security_protocol": "PLAINTEXT"}
    assert settings.faust_credentials() is None


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file holds what all replicas share; the environment says what is special about one."""
    file = tmp_path / "streamsched.toml"
    file.write_text('bootstrap = "k1:9092,k2:9092"\nreplica = "a"\nroles = ["intake", "health"]\n')
    given(monkeypatch, replica="b", config=str(file))

    settings = load_settings()

    assert (settings.bootstrap, settings.replica, settings.roles) == (
        "k1:9092,k2:9092",
        "b",
        (Role.INTAKE, Role.HEALTH),
    )
    assert settings.topic("ledger.v1") == "streamsched.ledger.v1"


def test_roles_are_a_list_with_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order and however often they are named."""
    given(monkeypatch, roles="views, intake,views")

    assert load_settings().roles == (Role.INTAKE, Role.VIEWS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("bootstrap", "broker", ["bootstrap='broker'", "host:port"]),
        ("roles", "intake,cook", ["roles", "'cook'", "scheduler"]),
        ("web_port", "0", ["web_port='0'", "greater than or equal to 1"]),
        ("lease_ms", "soon", ["lease_ms='soon'", "silent"]),
        ("cluster", "a/b", ["cluster='a/b'"]),
        ("metrics_port", "6066", ["web_port and metrics_port are both 6066"]),
        ("security_protocol", "SASL_SSL", ["sasl_username and sasl_password"]),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: list[str]
) -> None:
    """Nobody should have to read the code to correct it."""
    given(monkeypatch, **{name: value})

    with pytest.raises(ConfigurationError) as raised:
        load_settings()

    assert all(words in str(raised.value) for words in said), str(raised.value)


def test_a_key_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    """It is most often a misspelt one, and its wish would silently not come true."""
    file = tmp_path / "streamsched.toml"
    file.write_text("leese_ms = 5\n")

    with pytest.raises(ConfigurationError, match=r"'leese_ms', which nothing reads.*lease_ms"):
        load_settings(file)
    with pytest.raises(ConfigurationError, match="STREAMSCHED_LEESE_MS, which nothing reads"):
        load_settings(environment={"STREAMSCHED_LEESE_MS": "5"})


def test_the_example_file_is_the_defaults() -> None:
    """Nobody has to guess what a setting is without it, and the file names every one."""
    example = Path("deploy/streamsched.example.toml")

    assert load_settings(example).model_dump() == load_settings().model_dump()
    assert all(name in example.read_text() for name in ServiceSettings.model_fields)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or no TOML."""
    with pytest.raises(ConfigurationError, match=r"absent\.toml cannot be read"):
        load_settings(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("roles = [")
    with pytest.raises(ConfigurationError, match=r"broken\.toml is no TOML"):
        load_settings(tmp_path / "broken.toml")


def test_secrets_are_used_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Neither in what is printed at the start nor in what is said about a wrong value."""
    caplog.set_level(logging.DEBUG)
    given(monkeypatch, security_protocol="SASL_SSL", sasl_username="scheduler", sasl_password="hunter2")
    settings = load_settings()

    security = settings.kafka_security()
    assert security["sasl_plain_password"] == "hunter2"
    assert isinstance(security["ssl_context"], ssl.SSLContext)
    assert "hunter2" not in f"{settings!r}{settings.model_dump(mode='json')}{caplog.text}"
    file = tmp_path / "streamsched.toml"
    file.write_text('sasl_password = ["hunter2"]\n')
    monkeypatch.delenv("STREAMSCHED_SASL_PASSWORD")
    with pytest.raises(ConfigurationError) as raised:
        load_settings(file)
    assert "sasl_password is wrong" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_tls_files_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing file, or one that is no certificate."""
    given(monkeypatch, security_protocol="SSL", tls_ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigurationError, match=r"tls_ca_file=.*ca\.pem"):
        load_settings().kafka_security()
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"tls_ca_file=.*ca\.pem"):
        load_settings().kafka_security()
