"""Settings of a connection: timeouts, TLS files, the token. Plain values that open nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from rlmesh_gym.errors import ConfigurationError

_LONGEST = 1e9  # seconds; some thirty years

MAX_UNARY_BYTES = 16 * 1024 * 1024
"""Most bytes of the answer to a handshake; a contract's largest parts are bounds of images."""


def _check_names(what: str, values: Mapping[str, Any], kind: type[Timeouts | TLSConfig]) -> None:
    known = sorted(field.name for field in fields(kind))
    unknown = sorted(str(name) for name in values if name not in known)
    if unknown:
        raise ConfigurationError(
            f"unknown {what} {', '.join(unknown)}; there are {', '.join(known)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long each kind of call may take, in seconds; ``None`` waits for ever.

    Attributes:
        connect: Finding the endpoint and shaking hands with it.
        reset: One ``reset``, whole or partial.
        step: One ``step``.
        render: One ``render``.
        predict: One prediction of a model.
        resolve: Setting a model up for an environment.
        close: Saying goodbye, and for embedded endpoints closing their environments; after that
            the connection is dropped, and the process killed.
        start: An embedded endpoint's process to come up, counted anew with every lane made.
    """

    connect: float | None = 10.0
    reset: float | None = 300.0
    step: float | None = 300.0
    render: float | None = 60.0
    predict: float | None = 300.0
    resolve: float | None = 300.0
    close: float | None = 5.0
    start: float | None = 120.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigurationError(
                    f"timeouts.{field.name} must be seconds or None, got {value!r}"
                )
            if not value > 0:  # NaN is not.
                raise ConfigurationError(
                    f"timeouts.{field.name} must be more than 0 seconds, got {value!r}; "
                    "None waits for ever"
                )
            if value > _LONGEST:  # More than gRPC's clock and Python's locks can count.
                object.__setattr__(self, field.name, None)

    @classmethod
    def from_value(cls, value: TimeoutsLike) -> Timeouts:
        """Return settings from what users type.

        Args:
            value: ``None`` for the defaults, a number for every call of an environment or model, a
                mapping with some of the fields, or ready settings.

        Raises:
            ConfigurationError: An unknown field, or not a positive number.
        """
        if isinstance(value, Timeouts):
            return value
        if value is None:
            return cls()
        if isinstance(value, Mapping):
            _check_names("timeouts", value, cls)
            return cls(**value)
        return cls(reset=value, step=value, render=value, predict=value, resolve=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSConfig:
    """Certificate files (PEM) of one end of a connection.

    A client needs ``root_certificates`` unless the system's are right, and the pair of
    ``certificate_chain`` and ``private_key`` only where the server asks for a client certificate. A
    server needs that pair; ``root_certificates`` makes it ask its clients for certificates.

    Attributes:
        root_certificates: File with the certificates to trust.
        certificate_chain: File with this end's own certificate.
        private_key: File with the key to it.
        server_name: Name on the server's certificate where it differs from the address.
    """

    root_certificates: str | os.PathLike[str] | None = None
    certificate_chain: str | os.PathLike[str] | None = None
    private_key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_chain is None) != (self.private_key is None):
            raise ConfigurationError("tls: certificate_chain and private_key come as a pair")

    @classmethod
    def from_value(cls, value: TLSLike) -> TLSConfig | None:
        """Return settings from what users type; ``None`` is a connection without TLS.

        Args:
            value: ``None`` or ``False`` for none, ``True`` for the system's root certificates, a
                mapping with some of the fields, or ready settings.

        Raises:
            ConfigurationError: An unknown field or half a pair.
        """
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        if isinstance(value, TLSConfig):
            return value
        if not isinstance(value, Mapping):
            raise ConfigurationError(
                f"tls must be a bool, a mapping or a TLSConfig, got {type(value).__name__}"
            )
        _check_names("tls settings", value, cls)
        return cls(**value)

    def read(self, name: str) -> bytes | None:
        """Return the content of the file in field ``name``, ``None`` where the field is unset."""
        path = getattr(self, name)
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"tls: cannot read {name} {str(path)!r}: {error.strerror}"
            ) from error


TimeoutsLike: TypeAlias = "float | Mapping[str, float | None] | Timeouts | None"
TLSLike: TypeAlias = "bool | Mapping[str, Any] | TLSConfig | None"


def resolve_token(token: str | None) -> str | None:
    """Return the token to present or to ask for: the argument, else ``RLMESH_GYM_TOKEN``.

    An empty string means no token, also when the variable is set.

    Raises:
        ConfigurationError: Characters that gRPC metadata cannot carry. The message does not quote
            the token.
    """
    if token is None:
        token = os.environ.get("RLMESH_GYM_TOKEN")
    if not token:
        return None
    if not isinstance(token, str):
        raise ConfigurationError(f"token must be a str, got {type(token).__name__}")
    if not all(" " <= character <= "~" for character in token) or token != token.strip():
        raise ConfigurationError(
            "token must be printable ASCII without spaces at its ends, as metadata requires"
        )
    return token
