"""Bridges to libraries that do not take a Gymnasium vector environment as it is.

Each module imports its library, so import the one you need, such as
``from rlmesh_gym.integrations.sb3 import as_vec_env``.
"""
