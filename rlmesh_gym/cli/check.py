"""``rlmesh-gym check``: does an endpoint, or what is to be served, keep the protocol's rules?"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import (
    add_connection_options,
    connection_arguments,
    keyword_arguments,
    keyword_option,
)
from rlmesh_gym.cli.output import show
from rlmesh_gym.cli.ping import open_either
from rlmesh_gym.cli.serve import build_env
from rlmesh_gym.cli.serve_model import build_handler, load_object
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.testing import env_rule_results, model_rule_results, serving, serving_model

if TYPE_CHECKING:
    import argparse

    from gymnasium import spaces

    from rlmesh_gym.testing import RuleResult


EPILOG = """\
Each rule is passed, failed, lacking (the endpoint does not offer it) or skipped (there was nothing
to look at). The exit code is 1 if one failed. Random actions are played, in a session of their own.

A model is asked about random observations of the environment that --env names.

  rlmesh-gym check 127.0.0.1:5555
  rlmesh-gym check CartPole-v1
  rlmesh-gym check my_package.my_env:MyEnv --kwargs size=5 --json
  rlmesh-gym check policies/act.py:make --env 127.0.0.1:5555
"""

_GYM_ID = re.compile(r"(?:[\w.]+:)?(?:[\w.-]+/)?[\w.-]+-v\d+")
_OBJECT = re.compile(r".*:[A-Za-z_][\w.]*")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="an address; or a Gymnasium id, MODULE:OBJECT or FILE.py:OBJECT of an environment, a "
        "model or a factory of either, which is then served here",
    )
    keyword_option(parser, "--kwargs", "the id, class or factory")
    parser.add_argument(
        "--env",
        metavar="ENV",
        help="for a model: the environment that it is for, an address or a Gymnasium id",
    )
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    add_connection_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Check rule after rule, and show each as it is checked."""
    how = connection_arguments(options)
    how.pop("timeouts")
    if options.timeout is not None:
        how["timeout"] = options.timeout
    results: list[RuleResult] = []
    with ExitStack() as stack:
        kind, address = _find(options, stack)
        if kind == "env":
            checked = env_rule_results(address, **how)
        else:
            checked = model_rule_results(address, *_spaces_for(options), **how)
        for result in checked:
            results.append(result)
            if not options.json:
                show(_line(result), flush=True)
    failed = sum(result.outcome == "failed" for result in results)
    if options.json:
        show(json.dumps(_facts(options.target, kind, results), indent=2))
    else:
        show(_summary(options.target, results))
    return Exit.FAILED if failed else Exit.DONE


def _find(options: argparse.Namespace, stack: ExitStack) -> tuple[str, str]:
    """Return the kind of the endpoint and its address; what is none is served meanwhile."""
    target, kwargs = options.target, keyword_arguments(options.kwargs)
    if _GYM_ID.fullmatch(target):
        build = partial(build_env, target, num_envs=None, env_kwargs=kwargs)
        return "env", stack.enter_context(serving(build, token=options.token))
    if _OBJECT.fullmatch(target):
        made = build_handler(load_object(target), kwargs)
        if isinstance(made, (gym.Env, VectorEnv, list, tuple)):
            return "env", stack.enter_context(serving(made, token=options.token))
        return "model", stack.enter_context(serving_model(made, token=options.token))
    if kwargs:
        raise ConfigurationError("--kwargs are for what is served here, not for an address")
    with open_either(target, **connection_arguments(options)) as session:
        return "env" if isinstance(session, EnvSession) else "model", target


def _spaces_for(options: argparse.Namespace) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the spaces of the environment that a model is for, as a client sees them."""
    if options.env is None:
        raise ConfigurationError(
            f"{options.target} is a model; name the environment that it is for, as in "
            "--env CartPole-v1 or --env 127.0.0.1:5555"
        )
    with ExitStack() as stack:
        address = options.env
        if _GYM_ID.fullmatch(address):
            build = partial(build_env, address, num_envs=None)
            address = stack.enter_context(serving(build, token=options.token))
        session = stack.enter_context(EnvSession.open(address, **connection_arguments(options)))
        contract = session.contract
        return contract.single_observation_space, contract.single_action_space


def _line(result: RuleResult) -> str:
    text = f"{result.outcome:8}{result.rule}: {result.promise}"
    if result.detail:
        text += f" {result.detail[:1].upper()}{result.detail[1:]}."
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent=" " * 8, break_long_words=False)


def _counts(results: list[RuleResult]) -> dict[str, int]:
    outcomes = ("passed", "failed", "lacking", "skipped")
    return {name: sum(result.outcome == name for result in results) for name in outcomes}


def _summary(target: str, results: list[RuleResult]) -> str:
    counts = ", ".join(f"{number} {name}" for name, number in _counts(results).items() if number)
    return f"{target}: {counts}"


def _facts(target: str, kind: str, results: list[RuleResult]) -> dict[str, Any]:
    names = ("rule", "promise", "outcome", "detail")
    rules = [{name: getattr(result, name) for name in names} for result in results]
    return {"target": target, "kind": kind, **_counts(results), "rules": rules}
