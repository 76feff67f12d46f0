import errno
import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import SafetensorError

from xcutils.core import artifacts
from xcutils.core.artifacts import check, writing
from xcutils.core.errors import UserError
from xcutils.core.ragged import from_rows

steady = settings(derandomize=True, deadline=None, max_examples=40)
DTYPES = st.sampled_from(["bool", "uint8", "int32", "int64", "float32", "float64"])
ANY_ARRAY = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
NAMES = st.text("abcxyz.", min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def tree(folder) -> dict[str, bytes]:
    """Every file below the folder with its bytes, and every folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"<folder>"
        for path in folder.rglob("*")
    }


@pytest.fixture
def finished(tmp_path):
    """A finished artifact with a file in a subfolder."""
    out = tmp_path / "out"
    with writing(out, name="out") as folder:
        artifacts.save_array(folder, "x", np.arange(5))
        (folder / "choose").mkdir()
        artifacts.save_json(folder / "choose", "facts.json", {"a": 1})
    return out


# --- written whole or not at all --------------------------------------------------------------------------------------


def test_nothing_is_there_before_the_end(tmp_path):
    out = tmp_path / "deep" / "out"
    with writing(out) as folder:
        artifacts.save_json(folder, "a.json", 1)
        assert not out.exists()
    assert sorted(tree(out)) == ["a.json", "manifest.json"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_leaves_nothing(tmp_path, error):
    with pytest.raises(error), writing(tmp_path / "out") as folder:
        artifacts.save_json(folder, "a.json", 1)
        raise error
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_keeps_the_old_folder_whole(finished, error):
    before = tree(finished.parent)
    with pytest.raises(error), writing(finished) as folder:
        artifacts.save_array(folder, "x", np.zeros(9))
        raise error
    assert tree(finished.parent) == before
    check(finished)


def test_a_new_folder_replaces_the_old_one_whole(finished):
    with writing(finished) as folder:
        assert tree(folder) == {}
        artifacts.save_json(folder, "b.json", 2)
    assert sorted(tree(finished)) == ["b.json", "manifest.json"]
    assert sorted(path.name for path in finished.parent.iterdir()) == ["out"]


def test_what_a_killed_process_left_is_not_taken_over(tmp_path):
    with pytest.raises(ValueError), writing(tmp_path / "out") as folder:
        draft = folder
        raise ValueError
    draft.mkdir()
    (draft / "half.npy").write_bytes(b"half")
    with writing(tmp_path / "out") as folder:
        artifacts.save_json(folder, "a.json", 1)
    assert sorted(tree(tmp_path / "out")) == ["a.json", "manifest.json"]


def test_the_manifest_lists_every_file_with_size_and_hash(finished):
    listed = json.loads((finished / "manifest.json").read_text())["files"]
    contents = {name: data for name, data in tree(finished).items() if name not in ("manifest.json", "choose")}
    facts = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
    facts["x.npy"]["arrays"] = {"": ["int64", 5]}
    assert listed == facts


def test_the_manifest_says_what_the_artifact_is_and_what_made_it(finished, tmp_path):
    with writing(tmp_path / "next", name="next", params={"K": 3}, inputs=[finished]) as folder:
        artifacts.save_tensors(folder, "w.safetensors", {"a": np.zeros((2, 3), np.float32)})
    manifest = artifacts.load_manifest(tmp_path / "next")
    assert manifest["format"] == artifacts.FORMAT and manifest["name"] == "next" and manifest["parameters"] == {"K": 3}
    assert manifest["inputs"] == {"out": artifacts.fingerprint(finished)}
    assert manifest["libraries"]["numpy"] == np.__version__ and set(artifacts.LIBRARIES) < set(manifest["libraries"])
    assert manifest["files"]["w.safetensors"]["arrays"] == {"a": ["F32", 2, 3]}


DISK_TROUBLE = [
    (OSError(errno.ENOSPC, "No space left on device"), "make room on the disk"),
    (OSError("1000 requested and 200 written"), "make room on the disk"),
    (SafetensorError("Error while serializing: I/O error: File too large (os error 27)"), "make room on the disk"),
    (OSError(errno.EIO, "Input/output error"), "check the disk"),
]


@pytest.mark.parametrize("error, remedy", DISK_TROUBLE)
def test_a_full_disk_is_a_sentence_and_the_old_folder_stays(finished, error, remedy):
    before = tree(finished.parent)
    with pytest.raises(UserError, match=f"out could not be written.*{remedy}.*dvc repro"), writing(finished) as folder:
        artifacts.save_json(folder, "a.json", 1)
        raise error
    assert tree(finished.parent) == before


def test_other_trouble_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "out"):
        raise FileNotFoundError(errno.ENOENT, "nothing there")


# --- checked ----------------------------------------------------------------------------------------------------------


def test_a_finished_folder_passes(finished):
    assert check(finished) == finished


@pytest.mark.parametrize("name", ["x.npy", "choose/facts.json"])
def test_a_missing_file_is_found(finished, name):
    (finished / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing.*dvc repro"):
        check(finished)


@pytest.mark.parametrize("name", ["y.npy", "choose/more.json", "foreign/x.npy"])
def test_a_file_that_does_not_belong_there_is_found(finished, name):
    (finished / name).parent.mkdir(exist_ok=True)
    (finished / name).write_bytes(b"stray")
    with pytest.raises(UserError, match=f"{name} does not belong to .*dvc repro"):
        check(finished)


def test_a_rename_that_fails_brings_the_old_folder_back(finished, monkeypatch):
    before, really = tree(finished.parent), os.replace

    def fails(source, target):
        if str(source).endswith(".draft"):
            raise OSError(errno.EIO, "Input/output error")
        really(source, target)

    monkeypatch.setattr(artifacts.os, "replace", fails)
    with pytest.raises(UserError, match="could not be written"), writing(finished) as folder:
        artifacts.save_json(folder, "b.json", 2)
    assert tree(finished.parent) == before


def test_a_folder_that_a_killed_process_had_moved_aside_comes_back(finished):
    before = tree(finished)
    os.replace(finished, finished.with_name(".out.old"))
    with pytest.raises(ValueError), writing(finished):
        raise ValueError
    assert tree(finished) == before


@pytest.mark.parametrize("name", ["x.npy", "choose/facts.json"])
def test_a_truncated_file_is_found(finished, name):
    data = (finished / name).read_bytes()
    (finished / name).write_bytes(data[:-1])
    with pytest.raises(UserError, match=f"{name} is {len(data) - 1} bytes long, not {len(data)}.*dvc repro"):
        check(finished)


@pytest.mark.parametrize("name", ["x.npy", "choose/facts.json"])
def test_a_flipped_bit_is_found_wherever_it_is(finished, name):
    data = (finished / name).read_bytes()
    for place in range(len(data)):
        (finished / name).write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(UserError, match=f"{name} is damaged.*dvc repro"):
            check(finished)


def test_a_flipped_bit_in_the_manifest_is_found_wherever_it_is(finished):
    file = finished / "manifest.json"
    data = file.read_bytes()
    for place in range(len(data) - 1):  # the last one is a line break
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            same = json.loads(changed) == json.loads(data)
        except ValueError:
            same = False
        file.write_bytes(changed)
        if not same:
            with pytest.raises(UserError, match="manifest|format|x.npy|facts.json"):
                check(finished)


@pytest.mark.parametrize("manifest", ['{"format": 99, "files": {}}', '{"format": 1, "files": {}}', '{"files": {}}'])
def test_another_version_is_found(finished, manifest):
    (finished / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match="has format .*, this version reads.*dvc repro"):
        check(finished)


@pytest.mark.parametrize("manifest", ['{"name": "other"}', "[1, 2]", "3", '{"format": 2, "files": [1]}'])
def test_a_foreign_manifest_is_found(finished, manifest):
    (finished / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match="is no manifest.*dvc repro"):
        check(finished)


def test_folders_of_two_runs_are_not_taken_together(finished, tmp_path):
    for name, number in (("one", 1), ("two", 2)):
        with writing(tmp_path / name, name="next", inputs=[finished]) as folder:
            artifacts.save_json(folder, "a.json", number)
        artifacts.check_together(finished, tmp_path / name)
    with writing(tmp_path / "last", name="last", inputs=[finished, tmp_path / "one"]) as folder:
        artifacts.save_json(folder, "a.json", 3)
    artifacts.check_together(finished, tmp_path / "one", tmp_path / "last")
    with pytest.raises(UserError, match="last was made from another .*two than the one that is there.*dvc repro"):
        artifacts.check_together(finished, tmp_path / "two", tmp_path / "last")
    with writing(finished, name="out") as folder:
        artifacts.save_json(folder, "a.json", "made again")
    with pytest.raises(UserError, match="one was made from another .*out than"):
        artifacts.check_together(finished, tmp_path / "one", tmp_path / "last")


def test_a_large_file_is_hashed_once_and_again_when_it_was_touched(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "LARGE_FILE", 100)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    (tmp_path / "dvc.yaml").touch()
    hashed, really = [], artifacts.sha256
    monkeypatch.setattr(artifacts, "sha256", lambda path: hashed.append(path.name) or really(path))
    for _ in range(3):
        check(finished)
    assert hashed.count("x.npy") == 1 and hashed.count("facts.json") == 3  # small ones are hashed every time
    data, times = (finished / "x.npy").read_bytes(), (finished / "x.npy").stat()
    (finished / "x.npy").write_bytes(data[:-1] + b"\xff")
    os.utime(finished / "x.npy", ns=(times.st_atime_ns, times.st_mtime_ns))  # even when somebody sets the time back
    with pytest.raises(UserError, match="x.npy is damaged"):
        check(finished)
    (tmp_path / ".scratch" / "verified.json").write_text("[not json")
    (finished / "x.npy").write_bytes(data)
    check(finished)


@pytest.mark.parametrize("manifest", ["", "{", '{"format": 2', "\udcff"])
def test_a_damaged_manifest_is_found(finished, manifest):
    (finished / "manifest.json").write_bytes(manifest.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match="manifest.json cannot be read.*dvc repro"):
        check(finished)


def test_a_folder_without_manifest_is_not_finished(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="not a finished artifact.*dvc repro"):
            check(folder)


# --- round trips ------------------------------------------------------------------------------------------------------


@steady
@given(array=ANY_ARRAY)
def test_arrays_come_back(array, tmp_path_factory):
    folder = tmp_path_factory.mktemp("array")
    artifacts.save_array(folder, "x", array)
    found = artifacts.load_array(folder, "x")
    assert found.dtype == array.dtype and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


def test_arrays_are_mapped_and_cannot_be_written(tmp_path):
    artifacts.save_array(tmp_path, "x", np.arange(6).reshape(2, 3).T)
    found = artifacts.load_array(tmp_path, "x")
    assert (
        isinstance(found.base, np.memmap) and not found.flags.writeable and found.tolist() == [[0, 3], [1, 4], [2, 5]]
    )
    with pytest.raises(ValueError):
        found[0, 0] = 1


@steady
@given(rows=st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6))
def test_ragged_rows_come_back(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")
    artifacts.save_ragged(folder, "x", from_rows(rows, np.int32))
    found = artifacts.load_ragged(folder, "x")
    assert [found[row].tolist() for row in range(len(found))] == rows
    assert found.values.dtype == np.int32 and found.offsets.dtype == np.int64
    assert found.take(np.arange(len(rows))).values.tolist() == [value for row in rows for value in row]


@steady
@given(tensors=st.dictionaries(NAMES, ANY_ARRAY, max_size=4))
def test_tensors_come_back(tensors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensors")
    artifacts.save_tensors(folder, "x.safetensors", tensors)
    found = artifacts.load_tensors(folder, "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        back = found[name].numpy()
        assert back.dtype == array.dtype and back.shape == array.shape
        np.testing.assert_array_equal(back, array)


@steady
@given(named=st.dictionaries(st.text("abcxyz./", min_size=1, max_size=6), ANY_ARRAY, max_size=4))
def test_many_arrays_in_one_file_come_back(named, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    artifacts.save_arrays(folder, "x", named)
    found = artifacts.load_arrays(folder, "x")
    assert set(found) == set(named)
    for name, array in named.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_a_transposed_tensor_comes_back(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    artifacts.save_tensors(tmp_path, "x.safetensors", {"a": array})
    np.testing.assert_array_equal(artifacts.load_tensors(tmp_path, "x.safetensors")["a"], array)


@steady
@given(value=JSON)
def test_json_comes_back(value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    artifacts.save_json(folder, "x.json", value)
    assert artifacts.load_json(folder, "x.json") == value


def test_rows_become_lines_with_a_column_for_every_key(tmp_path):
    artifacts.save_rows(tmp_path, "x.csv", [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "N@5": 7, "text": 'a, "é"'}])
    lines = (tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["epoch,loss,N@5,text", "1,0.5,,", '2,,7,"a, ""é"""']


# --- damage and pickles -----------------------------------------------------------------------------------------------


def test_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        artifacts.save_array(tmp_path, "x", np.array([{}, None], dtype=object))


def test_a_pickle_is_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("went off").touch, ())

    (tmp_path / "x.npy").write_bytes(pickle.dumps(Bomb()))
    np.save(tmp_path / "y.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    for name in "xy":
        with pytest.raises(UserError, match="cannot be read.*dvc repro"):
            artifacts.load_array(tmp_path, name)
    assert not (tmp_path / "went off").exists()


@pytest.mark.parametrize("keep", [0, 5, 100, 200, 4000])
def test_a_truncated_array_is_a_sentence(tmp_path, keep):
    artifacts.save_array(tmp_path, "x", np.arange(1000))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:keep])
    with pytest.raises(UserError, match="x.npy cannot be read.*dvc repro"):
        artifacts.load_array(tmp_path, "x")


@pytest.mark.parametrize("keep", [0, 5, 50, 90])
def test_truncated_tensors_are_a_sentence(tmp_path, keep):
    artifacts.save_tensors(tmp_path, "x.safetensors", {"a": np.arange(1000)})
    data = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(data[:keep])
    with pytest.raises(UserError, match="x.safetensors cannot be read.*dvc repro"):
        artifacts.load_tensors(tmp_path, "x.safetensors")


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    for load in (artifacts.load_array, artifacts.load_ragged, artifacts.load_tensors, artifacts.load_json):
        with pytest.raises(UserError, match="cannot be read.*dvc repro"):
            load(tmp_path, "nothing")


@pytest.mark.parametrize(
    "path, command",
    [
        ("data/encoder", "dvc repro"),
        ("unidec/data/train/final/labels.npy", "dvc repro unidec/dvc.yaml"),
        ("/home/me/unidec/project/data/score", "dvc repro"),
        ("/home/me/project/unidec/data/score", "dvc repro unidec/dvc.yaml"),
        ("unidec/metrics.json", "dvc repro unidec/dvc.yaml"),
        ("metrics.json", "dvc repro"),
    ],
)
def test_a_sentence_names_the_command_of_the_artifacts_own_pipeline(path, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert artifacts.command(Path(path)) == command
    with pytest.raises(UserError, match=rf"run `{command}` to make it again\.$"):
        artifacts.load_json(Path(path).parent, Path(path).name)
    with pytest.raises(UserError, match=rf"run `{command}` to make it again\.$"):
        artifacts.check(Path(path))
