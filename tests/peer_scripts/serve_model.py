"""Serve a model with the released ``rlmesh`` package. Started by ``tests.peers.model_endpoint``."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import Any

import rlmesh

from tests.peer_scripts.models import MODELS


def announce(address: str) -> None:
    """Print the address once something listens there; the package does not say when it does."""
    scheme, _, rest = address.partition("://")
    while True:
        family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            host, _, port = rest.rpartition(":")
            target: Any = rest if scheme == "unix" else (host, int(port))
            if probe.connect_ex(target) == 0:
                break
        time.sleep(0.01)
    print(f"ADDRESS {address}", flush=True)


def main() -> None:
    """Serve what the JSON in the first argument describes; print the address first."""
    plan = json.loads(sys.argv[1])
    address = plan["address"]
    threading.Thread(target=announce, args=(address,), daemon=True).start()
    options = rlmesh.ServeOptions(allow_remote_shutdown=plan["allow_shutdown"])
    MODELS[plan["kind"]]().serve(address, options=options)


if __name__ == "__main__":
    main()
