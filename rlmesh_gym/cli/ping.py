"""``rlmesh-gym ping``: what an endpoint is, and how far away."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import add_connection_options, connection_arguments, count_option
from rlmesh_gym.cli.output import show
from rlmesh_gym.errors import AuthenticationError, ProtocolError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.runtime.report.formatting import fact_lines, format_duration, one_line

if TYPE_CHECKING:
    import argparse


EPILOG = """\
It shakes hands and takes no session, so it may be used while a training runs there.

  rlmesh-gym ping 127.0.0.1:5555
  rlmesh-gym ping unix:///tmp/policy.sock --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("address", metavar="ADDRESS", help="of an env or a model endpoint")
    count_option(parser, "--count", "round trips to measure", default=10)
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    add_connection_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Connect, describe, measure."""
    with open_either(options.address, **connection_arguments(options)) as session:
        trips = sorted(session.ping() for _ in range(options.count))
        facts = _facts(session)
    facts["round_trip"] = {
        "count": len(trips),
        "least": trips[0],
        "median": statistics.median(trips),
        "greatest": trips[-1],
    }
    if options.json:
        show(json.dumps(jsonable(facts), indent=2, allow_nan=False))
    else:
        show(_table(facts))
    return Exit.DONE


def open_either(address: str, **how: Any) -> EnvSession | ModelSession:
    """Connect to an endpoint of which nobody has said whether it is an env's or a model's."""
    try:
        return EnvSession.open(address, **how)
    except AuthenticationError:
        raise
    except ProtocolError as not_an_env:
        try:
            return ModelSession.open(address, **how)
        except AuthenticationError:
            raise
        except ProtocolError:
            raise not_an_env from None


def _facts(session: EnvSession | ModelSession) -> dict[str, Any]:
    facts: dict[str, Any] = {"endpoint": session.endpoint, "kind": "model"}
    if isinstance(session, EnvSession):
        contract = session.contract
        facts |= {
            "kind": "env",
            "env_id": contract.env_id,
            "num_envs": contract.num_envs,
            "autoreset_mode": contract.autoreset_mode.name,
            "render_mode": contract.render_mode,
            "observation_space": _space_tree(contract.single_observation_space),
            "action_space": _space_tree(contract.single_action_space),
            "metadata": {
                key: value for key, value in contract.metadata.items() if key != "autoreset_mode"
            },
        }
    peer = session.peer
    facts["capabilities"] = dict(session.capabilities)
    facts["peer"] = {
        "package": peer.extra.get("package", "rlmesh"),
        "version": peer.package_version,
        "language": f"{peer.language} {peer.language_version}".strip(),
        "system": f"{peer.os} {peer.arch}".strip(),
        "frameworks": dict(peer.framework_versions),
    }
    return facts


def _space_tree(space: spaces.Space[Any]) -> Any:
    """The space as nested dictionaries of one-line texts."""
    if isinstance(space, spaces.Dict):
        return {key: _space_tree(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"[{place}]": _space_tree(child) for place, child in enumerate(space.spaces)}
    return one_line(space, 160)


def _table(facts: dict[str, Any]) -> str:
    trip, peer = facts["round_trip"], facts["peer"]
    frameworks = ", ".join(f"{name} {version}" for name, version in peer["frameworks"].items())
    pairs = [("endpoint", facts["endpoint"]), ("kind", facts["kind"])]
    if facts["kind"] == "env":
        pairs += [
            ("env id", facts["env_id"]),
            ("lanes", str(facts["num_envs"])),
            ("autoreset", facts["autoreset_mode"]),
            ("render mode", facts["render_mode"] or "none"),
            *_space_pairs("observation", facts["observation_space"]),
            *_space_pairs("action", facts["action_space"]),
        ]
        if facts["metadata"]:
            pairs.append(("metadata", json.dumps(jsonable(facts["metadata"]))))
    pairs += [
        ("capabilities", ", ".join(sorted(facts["capabilities"])) or "none"),
        ("peer", f"{peer['package']} {peer['version']}, {peer['language']}, {peer['system']}"),
        ("frameworks", frameworks or "not told"),
        (
            "round trip",
            f"{format_duration(trip['median'])} (median of {trip['count']}, "
            f"{format_duration(trip['least'])} to {format_duration(trip['greatest'])})",
        ),
    ]
    return fact_lines(pairs)


def _space_pairs(name: str, tree: Any) -> list[tuple[str, str]]:
    if not isinstance(tree, dict):
        return [(name, str(tree))]
    pairs = []
    for key, child in tree.items():
        joined = f"{name}{key}" if key.startswith("[") else f"{name}.{key}"
        pairs += _space_pairs(joined, child)
    return pairs or [(name, "empty")]
