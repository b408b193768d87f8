"""Buffers that a graph writes to, as they are before: a backward pass that reads them later finds others."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from ..facts.operations import operation
from .joint import Joint, is_tensor


def keep_before_writing(joint: Joint) -> bool:
    """Give what the backward pass may be made of a copy of each input that the forward pass writes to.

    PyTorch's partitioners take inputs for what is always there, and compute from them anew.

    Returns:
        Whether the graph has become another.
    """
    leads = set(joint.backward)  # to the backward pass
    for node in reversed(joint.nodes):
        if any(user in leads for user in node.users):
            leads.add(node)
    copied = False
    for node in joint.nodes:
        if node.op != "placeholder" or not is_tensor(node):
            continue
        writers = {user for user in node.users if user not in joint.backward and _writes(user, node)}
        readers = [user for user in node.users if user in leads and user not in writers]
        if writers and readers:
            copy = _copy(joint, node)
            for user in readers:
                user.replace_input_with(node, copy)
            copied = True
    return copied


def _writes(user: Node, node: Node) -> bool:
    if not isinstance(user.target, torch._ops.OpOverload):
        return False
    return any(user.args[place : place + 1] == (node,) for place, _ in operation(user.target).written)


def _copy(joint: Joint, node: Node) -> Node:
    first = next(one for one in joint.nodes if one.op not in ("placeholder", "get_attr"))
    value = node.meta["val"]
    with joint.graph.inserting_before(first):
        copy = joint.graph.call_function(torch.ops.aten.clone.default, (node,))
    with value.fake_mode:
        copy.meta["val"] = value.clone()
    copy.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # where it is needed: it cannot be copied later
    return copy
