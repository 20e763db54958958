"""Servers in the test's own process, stopped when the test is over."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlmesh_gym.server import EnvServer, ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlmesh_gym.server import ModelHandler


@contextmanager
def serving(env: Any, address: str | None = None, **options: Any) -> Iterator[str]:
    """Serve an environment while the context lasts.

    Args:
        env: What :class:`~rlmesh_gym.server.EnvServer` takes: an env, a list of them, a vector env,
            or a callable that returns one of these.
        address: Where to listen; by default a free port of 127.0.0.1.
        **options: For ``EnvServer``.

    Yields:
        The address for clients.
    """
    with EnvServer(env, address, **options) as server:
        yield server.address


@contextmanager
def serving_model(
    handler: ModelHandler | Callable[[Any], Any], address: str | None = None, **options: Any
) -> Iterator[str]:
    """Serve a model while the context lasts.

    Args:
        handler: What :class:`~rlmesh_gym.server.ModelServer` takes: a handler, or a callable from
            batched observations to batched actions.
        address: Where to listen; by default a free port of 127.0.0.1.
        **options: For ``ModelServer``.

    Yields:
        The address for clients.
    """
    with ModelServer(handler, address, **options) as server:
        yield server.address
