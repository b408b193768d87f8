"""Checksums of compressed blocks name the tensor and the block that was changed."""

import contextlib
import gc
import warnings

import pytest
import torch

from golden import PlaneFormat
from torch_bridge import Compressor, CorruptionError
from torch_bridge.backends import checksum
from torch_bridge.backends.checksum import checksums
from torch_bridge.store.entries import Entry

FMT = PlaneFormat("fp32", block=64, target=80)
NOTHING = torch.nn.Module()


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def entries():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [thing for thing in gc.get_objects() if type(thing) is Entry]
    return [entry for entry in found if isinstance(entry.stored, torch.Tensor)]


def compressed(**options):
    x = leaf(100, 64)
    with Compressor(NOTHING, FMT, **options) as saver:
        loss = torch.nn.functional.dropout((x * 2).sin(), 0.5).sum()
    return loss, saver


def test_every_flipped_bit_names_tensor_and_block():
    for bit in range(8):
        loss, _ = compressed(verify=True)
        [entry] = [entry for entry in entries() if entry.stored.shape[1] == 80]
        entry.stored[37, 11 * bit] ^= 1 << bit
        with pytest.raises(CorruptionError, match=r"block 37 of 100 of the tensor mul, 100 x 64, float32"):
            loss.backward()
        del loss, entry


def test_masks_are_verified_as_well():
    loss, _ = compressed(verify=True)
    [entry] = [entry for entry in entries() if entry.stored.shape[1] == 64]
    entry.stored[3, 5] ^= 4
    with pytest.raises(CorruptionError, match=r"block 3 of 13 of the tensor div_, 100 x 64"):
        loss.backward()


def test_without_verification_only_an_invalid_header_is_an_error():
    loss, _ = compressed()
    [entry] = [entry for entry in entries() if entry.stored.shape[1] == 80]
    entry.stored[37, 40] ^= 1
    loss.backward(retain_graph=True)
    entry.memory.kept = None
    entry.stored[37, 0] = 255
    with pytest.raises(ValueError, match="block 37: no encoder produces the header"):
        loss.backward()


def test_checksums_do_not_go_to_the_default_device():
    def gradient(device):
        checksum._weights.cache_clear()
        x = leaf(100, 64)
        with device:
            with Compressor(NOTHING, FMT, verify=True):
                loss = (x * 2).sin().sum()
            loss.backward()
        return x.grad

    assert torch.equal(gradient(torch.device("meta")), gradient(contextlib.nullcontext()))
    stored = torch.arange(240, dtype=torch.uint8).view(3, 80)
    expected = checksums(stored)
    checksum._weights.cache_clear()
    with torch.device("meta"):
        found = checksums(stored)
    assert torch.equal(found, expected)


def test_checksums_are_counted_and_change_nothing_else():
    torch.manual_seed(0)
    loss, checked = compressed(verify=True)
    torch.manual_seed(0)
    same, saver = compressed()
    assert torch.equal(loss, same)
    assert checked.stored_bytes == saver.stored_bytes + 4 * (100 + 13)
    loss.backward()


@pytest.mark.parametrize("shape", [(0, 80), (1, 1), (5000, 9), (3, 513)])
def test_checksums_differ_for_every_changed_byte(shape):
    stored = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    before = checksums(stored)
    assert before.shape == shape[:1]
    for _ in range(50 if len(stored) else 0):
        row, column = (int(torch.randint(size, ())) for size in shape)
        changed = stored.clone()
        changed[row, column] = stored[row, column] + int(torch.randint(1, 256, ()))
        assert (checksums(changed) != before).nonzero().view(-1).tolist() == [row]
