"""The environment as one frozen value, read once.

Every field is an environment variable ``STREAMSCHED_<NAME>`` and a key of an optional TOML file; the environment wins.
A key that nothing reads is refused rather than ignored, since it is most often a misspelt one.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from faust.auth import Credentials, SASLCredentials, SSLCredentials
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import TomlConfigSettingsSource as TomlSource

from streamsched.errors import ConfigurationError
from streamsched.ledgers.kafka import KafkaSecurity

PREFIX = "STREAMSCHED_"
#: Names with our prefix that are not settings of the service: where its file is, and what only tests read.
_NOT_SETTINGS = (f"{PREFIX}CONFIG", f"{PREFIX}TEST_")

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
Port = Annotated[int, Field(ge=1, le=65_535)]


class Role(StrEnum):
    """A part of the service. One process may run any of them."""

    INTAKE = "intake"
    HEALTH = "health"
    SCHEDULER = "scheduler"
    VIEWS = "views"


class ServiceSettings(BaseSettings):
    """What one `streamsched serve` process is told. Times are milliseconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    bootstrap: str = Field(
        default="127.0.0.1:9092",
        pattern=r"^[^,\s]+:\d{1,5}(,[^,\s]+:\d{1,5})*$",
        description="Kafka brokers to begin with: host:port[,host:port...].",
    )
    topic_prefix: str = Field(
        default="streamsched.",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="Begins the name of every topic and consumer group.",
    )
    cluster: str = Field(
        default="default", pattern=_NAME, description="The cluster's name, in group names and metrics."
    )
    ledger_partition: int = Field(
        default=0, ge=0, le=100_000, description="The partition of the ledger topic: one per cluster."
    )
    replica: str = Field(
        default="a", pattern=_NAME, description="This scheduler's name; two schedulers of a cluster must not share one."
    )
    roles: Annotated[tuple[Role, ...], NoDecode, Field(min_length=1)] = Field(
        default=tuple(Role), description="What this process does: any of intake, health, scheduler, views."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How to connect to the brokers."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="How to log in, with SASL."
    )
    sasl_username: str | None = Field(default=None, min_length=1, description="Who logs in, with SASL.")
    sasl_password: SecretStr | None = Field(default=None, description="The password, with SASL. Never printed.")
    tls_ca_file: Path | None = Field(
        default=None, description="Certificates to trust, PEM; the machine's own when absent."
    )
    tls_certificate_file: Path | None = Field(
        default=None, description="Our certificate, PEM, when brokers ask for one."
    )
    tls_key_file: Path | None = Field(
        default=None, description="Its key, PEM; absent when it is in the certificate's file."
    )
    tls_key_password: SecretStr | None = Field(default=None, description="The key's password. Never printed.")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address of the two ports below. They know no login: open them to others only behind a proxy.",
    )
    web_port: Port = Field(default=6066, description="Answers queries on the views, with the role views.")
    metrics_port: Port = Field(default=6067, description="Gives Prometheus its metrics.")
    data_dir: Path = Field(
        default=Path("streamsched-data"), description="What must survive a restart of this process, a few bytes."
    )
    lease_ms: int = Field(
        default=30_000, ge=1_000, le=3_600_000, description="A node that is silent for this long is lost."
    )
    repair_webhook: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s]+$",
        description="Where schedulers POST that a node out of use has become empty: http:// or https://.",
    )

    @field_validator("roles", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("roles")
    @classmethod
    def _once(cls, value: tuple[Role, ...]) -> tuple[Role, ...]:
        return tuple(role for role in Role if role in value)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.security_protocol.startswith("SASL") and (self.sasl_username is None or self.sasl_password is None):
            raise ValueError(
                f"security_protocol is {self.security_protocol}, so sasl_username and sasl_password must be given"
            )
        if self.metrics_port == self.web_port:
            raise ValueError(f"web_port and metrics_port are both {self.web_port}; give each its own")
        return self

    def topic(self, name: str) -> str:
        """Return the full name of one of our topics: ``workloads.v1`` with the prefix."""
        return self.topic_prefix + name

    def ssl_context(self) -> ssl.SSLContext | None:
        """Build what TLS needs; None without TLS.

        Raises:
            ConfigurationError: A file is missing, unreadable or not what it should be.
        """
        if not self.security_protocol.endswith("SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            if self.tls_certificate_file is not None:
                password = self.tls_key_password.get_secret_value() if self.tls_key_password is not None else None
                context.load_cert_chain(self.tls_certificate_file, self.tls_key_file, password)
        except OSError as error:  # ssl.SSLError is one too.
            raise ConfigurationError(
                f"the TLS files cannot be used (tls_ca_file={self.tls_ca_file}, tls_certificate_file="
                f"{self.tls_certificate_file}, tls_key_file={self.tls_key_file}): {error}. "
                "Name readable PEM files that belong together."
            ) from error
        return context

    def kafka_security(self) -> KafkaSecurity:
        """Return how to connect, as aiokafka names it."""
        security = KafkaSecurity(security_protocol=self.security_protocol)
        context = self.ssl_context()
        if context is not None:
            security["ssl_context"] = context
        if self.security_protocol.startswith("SASL"):
            security["sasl_mechanism"] = self.sasl_mechanism
            security["sasl_plain_username"] = self.sasl_username or ""
            security["sasl_plain_password"] = self._password()
        return security

    def faust_credentials(self) -> Credentials | None:
        """Return how to connect, as Faust names it."""
        context = self.ssl_context()
        if self.security_protocol.startswith("SASL"):
            return SASLCredentials(
                username=self.sasl_username,
                password=self._password(),
                ssl_context=context,
                mechanism=self.sasl_mechanism,
            )
        return SSLCredentials(context) if context is not None else None

    def _password(self) -> str:
        return self.sasl_password.get_secret_value() if self.sasl_password is not None else ""


def load_settings(config: Path | None = None, environment: Mapping[str, str] = os.environ) -> ServiceSettings:
    """Read the environment and the file once.

    Args:
        config: The TOML file; ``STREAMSCHED_CONFIG`` when None, and no file when that is not set either.
        environment: The variables that are set; consulted for names that nothing reads.

    Raises:
        ConfigurationError: A key is unknown or a value is wrong; the message names the key, the value and the remedy.
    """
    if config is None and environment.get(f"{PREFIX}CONFIG"):
        config = Path(environment[f"{PREFIX}CONFIG"])
    known = {PREFIX + name.upper() for name in ServiceSettings.model_fields}
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not name.startswith(_NOT_SETTINGS):
            raise ConfigurationError(
                f"the environment sets {name}, which nothing reads. Unset it or correct its name; "
                f"the settings are {', '.join(sorted(known))}."
            )
    if config is not None:
        _check_file(config)

    class Sourced(ServiceSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = () if config is None else (TomlSource(settings_cls, config),)
            return (env_settings, *file)

    try:
        return Sourced()
    except ValidationError as error:
        raise ConfigurationError("; ".join(_told(problem) for problem in error.errors())) from None


def _check_file(config: Path) -> None:
    try:
        with config.open("rb") as file:
            tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"the settings file {config} cannot be read: {error.strerror}. Name a readable file with --config "
            f"or {PREFIX}CONFIG."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {config} is no TOML: {error}. Correct it there.") from error


def _told(problem: Mapping[str, Any]) -> str:
    """Say one validation error with its key, value and remedy, and never a secret."""
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return (
            f"the settings file sets {place!r}, which nothing reads. Remove it or correct its name; "
            f"the settings are {', '.join(sorted(ServiceSettings.model_fields))}."
        )
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not place:
        return f"the settings do not agree: {message}."
    field = ServiceSettings.model_fields.get(str(problem["loc"][0]))
    meaning = field.description if field is not None else ""
    value = "" if "password" in place else f"={problem['input']!r}"
    return (
        f"{place}{value} is wrong: {message}. {meaning} Set {PREFIX}{place.split('.')[0].upper()} or correct the file."
    )
