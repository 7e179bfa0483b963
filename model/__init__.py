"""Weights that come with the repository, and the model code under its old import path.

The code itself is in `agent_rl.modeling`; this package exists in a checkout only.
"""
