"""TLS with certificates made here: who is let in, and what those hear who are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import rlmesh_gym as rg
from rlmesh_gym.cli.options import connection_arguments
from rlmesh_gym.errors import UnavailableError
from tests.fake_envs import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

trustme = pytest.importorskip("trustme")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = trustme.CA(), trustme.CA()
    found = {"roots": folder / "roots.pem", "strange roots": folder / "strange.pem"}
    authority.cert_pem.write_to_path(found["roots"])
    stranger.cert_pem.write_to_path(found["strange roots"])
    for name, issuer in (("server", authority), ("client", authority), ("stranger", stranger)):
        issued = issuer.issue_cert("127.0.0.1")
        found[name], found[f"{name} key"] = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(found[name])
        issued.private_key_pem.write_to_path(found[f"{name} key"])
    return found


def settings(files: dict[str, Path], roots: str | None, own: str | None) -> dict[str, Path]:
    given = {} if roots is None else {"root_certificates": files[roots]}
    if own is not None:
        given |= {"certificate_chain": files[own], "private_key": files[f"{own} key"]}
    return given


@pytest.fixture(scope="module")
def address(files: dict[str, Path]) -> Iterator[str]:
    tls = settings(files, "roots", "server")
    with rg.EnvServer(CountingEnv(3), tls=tls) as server:
        yield server.address


def test_a_client_with_a_certificate_is_let_in(address: str, files: dict[str, Path]) -> None:
    with rg.RemoteEnv(address, tls=settings(files, "roots", "client")) as env:
        env.reset()
        assert env.step(0)[1] == 0.0


@pytest.mark.parametrize(
    ("roots", "own", "says"),
    [
        ("roots", None, r"asks for a client certificate.*--tls-cert"),
        ("roots", "stranger", "does not accept this client certificate"),
        ("strange roots", "client", "check the certificates"),
    ],
)
def test_who_is_not_let_in_hears_why(
    address: str, files: dict[str, Path], roots: str, own: str | None, says: str
) -> None:
    with pytest.raises(UnavailableError, match=says):
        rg.RemoteEnv(address, tls=settings(files, roots, own))


def test_tls_on_one_side_only(address: str, files: dict[str, Path]) -> None:
    with pytest.raises(UnavailableError, match="pass tls="):
        rg.RemoteEnv(address)
    with (
        rg.EnvServer(CountingEnv(3)) as server,
        pytest.raises(UnavailableError, match="whether the server uses TLS"),
    ):
        rg.RemoteEnv(server.address, tls=settings(files, "roots", "client"))


def test_client_certificates_let_one_listen_everywhere(files: dict[str, Path]) -> None:
    rg.EnvServer(CountingEnv(3), "0.0.0.0:0", tls=settings(files, "roots", "server"))


def test_on_the_command_line() -> None:
    import argparse

    from rlmesh_gym.cli.options import (
        add_connection_options,
        add_server_options,
        server_arguments,
    )

    client = argparse.ArgumentParser()
    add_connection_options(client)
    given = client.parse_args(["--tls", "r.pem", "--tls-cert", "c.pem", "--tls-key", "k.pem"])
    expected = {
        "root_certificates": "r.pem",
        "certificate_chain": "c.pem",
        "private_key": "k.pem",
    }
    assert connection_arguments(given)["tls"] == expected
    server = argparse.ArgumentParser()
    add_server_options(server)
    options = ["--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-client-ca", "r.pem"]
    found: dict[str, Any] = server_arguments(server.parse_args([*options, "--insecure"]))
    assert found["tls"] == expected
    assert found["insecure"]
