"""Arguments and files of ``python -m gen board``: what is wrong is said before a link is opened."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from gen.__main__ import main
from gen.board import command


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder of files of all kinds, from which no board is to be reached."""
    np.save(tmp_path / "array.npy", np.zeros(4, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}]))
    for dtype in ("float64", ">f4"):
        np.save(tmp_path / f"{np.dtype(dtype).str[1:]}.npy", np.zeros(4, dtype))
    np.savez(tmp_path / "other.npz", blocks=np.zeros((1, 20), np.uint8))
    written = {"scheme": "hadamard", "dtype": "fp32", "block": 128, "target": 32}
    invalid = np.zeros((3, 32), np.uint8)
    invalid[2, 0] = 2
    for name, changed in {
        "bools.npz": {"shape": np.array([True, True])},
        "invalid.npz": {"blocks": invalid, "shape": np.array([3, 128])},
        "negative.npz": {"shape": np.array([-2, -64])},
        "vast.npz": {"blocks": invalid[:0], "shape": np.array([0, 1 << 62])},
        "scheme.npz": {"scheme": "nope"},
        "rows.npz": {"shape": np.array([129])},
        "shape.npz": {"shape": np.array([-1.5])},
        "target.npz": {"target": 1000},
        "64.npz": {"block": 64, "blocks": np.zeros((2, 32), np.uint8)},
    }.items():
        whole = {"blocks": np.zeros((1, 32), np.uint8), "shape": np.array([128])} | written | changed
        np.savez(tmp_path / name, **whole)
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:100])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "array.npy").read_bytes()[:-1])
    monkeypatch.setattr(command, "connected", lambda port, about: pytest.fail("the link was opened"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRITTEN = "file must be one that compress has written, not "
NUMPYS = "file must be NumPy's, with arrays of numbers, not "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compress none.npy", "file must be one that can be read, not 'none.npy': No such file or directory"),
        ("compress .", "file must be one that can be read, not '.': Is a directory"),
        ("compress other.npz", "file must be a .npy of one array, not 'other.npz'"),
        *((f"compress {name}", NUMPYS + repr(name)) for name in ("empty.npy", "text.txt", "objects.npy")),
        *((f"compress {name}", NUMPYS + repr(name)) for name in ("cut.npy", "cut.npz")),
        (
            "decompress none.npz",
            "file must be one that can be read, not 'none.npz': No such file or directory",
        ),
        *((f"decompress {name}", WRITTEN + repr(name)) for name in ("array.npy", "other.npz", "target.npz")),
        *((f"decompress {name}", WRITTEN + repr(name)) for name in ("scheme.npz", "rows.npz", "shape.npz")),
        *((f"decompress {name}", WRITTEN + repr(name)) for name in ("bools.npz", "negative.npz", "vast.npz")),
        (
            "decompress invalid.npz",
            f"{WRITTEN}'invalid.npz': block 2: no encoder produces the header 02 00",
        ),
        *((f"decompress {name}", NUMPYS + repr(name)) for name in ("text.txt", "cut.npz", "empty.npy")),
        ("compress array.npy -o .", "--output must be a file, not the folder '.'"),
        ("compress array.npy -o no/x.npz", "--output must be in a folder that there is, not 'no/x.npz'"),
        (
            "compress array.npy -o array.npy",
            "--output must be another file than the one that is read, not 'array.npy'",
        ),
        (
            "compress array.npy -o /proc/x.npz",
            "--output must be in a folder that can be written to, not '/proc/x.npz': "
            "No such file or directory",
        ),
        ("compress f8.npy", "array must be of a type that the board has, float32, not float64"),
        (
            "compress f4.npy",
            "array must be of a type that the board has, float32, "
            "not float32 with its bytes in the other order",
        ),
        (
            "decompress 64.npz",
            "file must be of a format that the board has, planes of 64 fp32 in 80 bytes, "
            "hadamard of 128 fp32 in 32 bytes, not hadamard of 64 fp32 in 32 bytes",
        ),
        ("build ulx3s-85f", "--port must not be given with build, not '/dev/none'"),
        ("load ulx3s-85f", "--port must not be given with load, not '/dev/none'"),
        ("selftest --blocks 0", "--blocks must be at least 1, not 0"),
        ("selftest --blocks -5", "--blocks must be at least 1, not -5"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_the_link_is_opened(files, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["board", "--port", "/dev/none", *arguments.split()])
    assert str(stop.value) == f"python -m gen: {message}"


def test_a_scheme_that_there_is_not_is_named_before_the_link_is_opened(files, capsys):
    with pytest.raises(SystemExit):
        main(["board", "--port", "/dev/none", "compress", "array.npy", "--scheme", "foo"])
    assert "argument --scheme: invalid choice: 'foo'" in capsys.readouterr().err


def test_both_make_targets_take_the_options_of_every_action():
    root = Path(__file__).parent.parent
    for target, action in (("board", "build ulx3s-85f"), ("board-sim", "--port simulation selftest")):
        made = subprocess.run(
            ["make", "-n", target, "ARGS=--bus-bytes 64"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"-m gen board --bus-bytes 64 {action}" in made.stdout


def test_the_command_needs_a_port():
    with pytest.raises(SystemExit, match="--port must be given"):
        main(["board", "selftest"])
