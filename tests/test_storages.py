"""Weak references to storages."""

import sys

import torch

from torch_bridge.stash.storages import StorageRef


def test_a_reference_ends_without_python_code_in_which_an_interrupt_would_be_lost():
    called = []
    reference = StorageRef(torch.ones(4).untyped_storage())
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del reference
    finally:
        sys.setprofile(None)
    assert not called


def test_an_address_is_free_again_behind_the_last_reference():
    for held in ([], None):
        addresses = set()
        for _ in range(1000):
            reference = StorageRef(torch.ones(1).untyped_storage())
            assert reference.is_dead
            assert reference() is None
            addresses.add(reference.address)
            if held is not None:
                held.append(reference)
        assert (len(addresses) == 1000) == (held is not None)
