"""Scratch: parts, snapshots and rows of unfinished work; work is never resumed from what is damaged."""

import multiprocessing
import os
import resource
import signal
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core import artifacts, scratch
from xcutils.core.errors import UserError
from xcutils.core.scratch import Rows, Scratch, Snapshots, opened, work_key

fork = multiprocessing.get_context("fork")


def in_child(work) -> int:
    """The exit code of a process of its own that does the work."""
    process = fork.Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode


# --- the folder -------------------------------------------------------------------------------------------------------


def make_artifact(folder, value):
    with artifacts.writing(folder) as draft:
        artifacts.save_json(draft, "a.json", value)
    return folder


def test_the_fingerprint_follows_facts_inputs_and_code(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("one")
    one, two = make_artifact(tmp_path / "one", 1), make_artifact(tmp_path / "two", 2)
    first = work_key({"K": 3}, [one], [code])
    assert first == work_key({"K": 3}, [one], [code])
    others = {work_key({"K": 4}, [one], [code]), work_key({"K": 3}, [two], [code]), work_key({"K": 3}, [], [])}
    code.write_text("two")
    others.add(work_key({"K": 3}, [one], [code]))
    assert len(others) == 4 and first not in others


def test_the_folder_stays_after_a_failure_and_goes_after_success(tmp_path):
    with pytest.raises(RuntimeError), opened(tmp_path / "s" / "x", print) as work:
        make_artifact(work.folder / "a", 1)
        raise RuntimeError
    assert (tmp_path / "s" / "x" / "a").is_dir()
    with opened(tmp_path / "s" / "x", print) as work:
        assert artifacts.load_json(work.folder / "a", "a.json") == 1
    assert list((tmp_path / "s").iterdir()) == []


def test_a_second_process_waits_for_the_first(tmp_path):
    def first():
        with opened(tmp_path / "x", lambda text: None):
            (tmp_path / "begun").touch()
            time.sleep(0.5)
            (tmp_path / "ended").touch()

    process = fork.Process(target=first)
    process.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    said = []
    with opened(tmp_path / "x", said.append):
        assert (tmp_path / "ended").exists()
    process.join()
    assert len(said) == 1 and "waiting for another process" in said[0]


def test_a_killed_process_holds_no_lock(tmp_path):
    def killed():
        with opened(tmp_path / "x", lambda text: None):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL
    said = []
    with opened(tmp_path / "x", said.append):
        pass
    assert said == []


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_finished_part_is_made_once(tmp_path):
    made, said = [], []
    work = Scratch(tmp_path, said.append)

    def make(folder):
        made.append(folder)
        artifacts.save_json(folder, "a.json", len(made))

    for _ in range(2):
        part = work.part("a", make)
        assert artifacts.load_json(part, "a.json") == 1
    assert len(made) == 1 and said == ["a: taken from the run that was interrupted"]


def test_a_damaged_part_is_made_again_and_said(tmp_path):
    said = []
    work = Scratch(tmp_path, said.append)
    part = work.part("a", lambda folder: artifacts.save_json(folder, "a.json", 1))
    (part / "a.json").write_text("7\n")
    part = work.part("a", lambda folder: artifacts.save_json(folder, "a.json", 2))
    assert artifacts.load_json(part, "a.json") == 2
    assert len(said) == 1 and said[0].startswith("passed over") and "a.json" in said[0]


def test_a_part_that_fails_is_not_there(tmp_path):
    def fails(folder):
        artifacts.save_json(folder, "a.json", 1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Scratch(tmp_path).part("a", fails)
    assert list(tmp_path.iterdir()) == []


def test_a_parts_snapshots_go_when_it_is_finished(tmp_path):
    work = Scratch(tmp_path, pause=0)
    work.snapshots("a").save({"x": np.arange(3)}, {})
    assert work.snapshots("a").load() is not None
    work.part("a", lambda folder: None)
    assert work.snapshots("a").load() is None


def test_a_parts_files_are_moved_without_its_manifest(tmp_path):
    part = make_artifact(tmp_path / "part", 5)
    artifacts.adopt(part, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.json"]
    assert artifacts.load_json(tmp_path / "out", "a.json") == 5


# --- snapshots --------------------------------------------------------------------------------------------------------


def saved(folder, count):
    work = Snapshots(folder, pause=0)
    for number in range(count):
        work.save({"x": np.full(100, number)}, {"number": number})
    return work


def test_the_newest_snapshot_comes_back_and_two_are_kept(tmp_path):
    saved(tmp_path, 4)
    arrays, facts = Snapshots(tmp_path).load()
    assert facts == {"number": 3} and arrays["x"].tolist() == [3] * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003", "00000004"]


def test_without_a_snapshot_there_is_nothing_to_go_on_from(tmp_path):
    assert Snapshots(tmp_path / "none").load() is None


@pytest.mark.parametrize("file", ["state.npz", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone"])
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path, file, damage):
    saved(tmp_path, 2)
    path = tmp_path / "00000002" / file
    data = path.read_bytes()
    half = len(data) // 2
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:half], "empty": b"", "flip": data[:half] + bytes([data[half] ^ 8]) + data[half + 1 :]}[damage]
        )
    said = []
    work = Snapshots(tmp_path, said.append)
    assert work.load()[1] == {"number": 0} and work.newest == tmp_path / "00000001"
    assert len(said) == 1 and "passed over" in said[0] and "00000002" in said[0]


def test_a_new_snapshot_never_takes_the_number_of_a_damaged_one(tmp_path):
    saved(tmp_path, 2)
    (tmp_path / "00000002" / "state.npz").write_bytes(b"")
    Snapshots(tmp_path).save({"x": np.arange(2)}, {"number": 9})
    assert Snapshots(tmp_path).load()[1] == {"number": 9}


def test_snapshots_take_a_twentieth_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(scratch.time, "monotonic", lambda: clock[0])
    work = Snapshots(tmp_path)
    clock[0] = scratch.LEAST_PAUSE - 1
    assert not work.due(10)
    clock[0] = scratch.LEAST_PAUSE
    assert work.due(10) and not work.due(int(scratch.DISK_SPEED * 5))  # so much is thought to take five seconds
    work.cost, work.last = 10.0, 100.0
    clock[0] = 100 + 189
    assert not work.due(10)
    clock[0] = 100 + 190
    assert work.due(10)  # 10 seconds of 200


def test_a_full_disk_hurts_no_snapshot_and_stops_no_work(tmp_path):
    saved(tmp_path, 2)

    def fills():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        said = []
        work = Snapshots(tmp_path, said.append, pause=0)
        work.save({"x": np.zeros(100_000)}, {"number": 9})
        os._exit(7 if len(said) == 1 and "without a new snapshot" in said[0] and "make room" in said[0] else 1)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert in_child(fills) == 7
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert Snapshots(tmp_path).load()[1] == {"number": 1}


def test_an_artifact_is_left_as_it_was_when_the_disk_is_full(tmp_path):
    make_artifact(tmp_path / "out", 1)
    before = (tmp_path / "out" / "manifest.json").read_bytes()

    def fills(save):
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            with artifacts.writing(tmp_path / "out") as folder:
                artifacts.save_json(folder, "a.json", 2)
                save(folder)
        except UserError as error:
            os._exit(7 if "make room on the disk" in str(error) else 2)

    for save in (
        lambda folder: artifacts.save_array(folder, "x", np.zeros(100_000)),
        lambda folder: artifacts.save_arrays(folder, "x", {"a": np.zeros(100_000)}),
        lambda folder: artifacts.save_tensors(folder, "x.safetensors", {"a": np.zeros(100_000)}),
        lambda folder: artifacts.save_json(folder, "x.json", list(range(100_000))),
    ):
        assert in_child(partial(fills, save)) == 7
        assert (tmp_path / "out" / "manifest.json").read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- rows -------------------------------------------------------------------------------------------------------------

CHUNKS = [(0, 3), (3, 6), (6, 8)]


def content(start, stop):
    return np.arange(start * 4, stop * 4, dtype=np.float32).reshape(-1, 4)


def test_rows_remember_which_chunks_are_done(tmp_path):
    rows = Rows(tmp_path / "x", (8, 4))
    assert rows.done == set()
    rows.fill(3, 6, content(3, 6))
    rows = Rows(tmp_path / "x", (8, 4))
    assert rows.done == {(3, 6)}
    for chunk in [(0, 3), (6, 8)]:
        rows.fill(*chunk, content(*chunk))
    rows = Rows(tmp_path / "x", (8, 4))
    assert rows.done == set(CHUNKS)
    np.testing.assert_array_equal(rows.array, content(0, 8))


def test_rows_of_another_shape_are_begun_anew(tmp_path):
    Rows(tmp_path / "x", (8, 4)).fill(0, 3, content(0, 3))
    rows = Rows(tmp_path / "x", (8, 5))
    assert rows.done == set() and rows.array.shape == (8, 5)


def test_no_rows_need_no_file(tmp_path):
    assert Rows(tmp_path / "x", (0, 4)).array.shape == (0, 4)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(place=st.floats(0, 0.999), bit=st.integers(0, 7), of=st.sampled_from([".rows", ".journal"]), cut=st.booleans())
def test_a_chunk_is_taken_for_done_only_if_it_is_whole(tmp_path_factory, place, bit, of, cut):
    path = tmp_path_factory.mktemp("rows") / "x"
    rows = Rows(path, (8, 4))
    for chunk in CHUNKS:
        rows.fill(*chunk, content(*chunk))
    rows.array.flush()
    file = path.with_suffix(of)
    data = bytearray(file.read_bytes())
    where = int(place * len(data))
    if cut:
        data = data[:where]
    else:
        data[where] ^= 1 << bit
    file.write_bytes(data)
    rows = Rows(path, (8, 4))
    assert rows.done <= set(CHUNKS)
    for chunk in rows.done:
        np.testing.assert_array_equal(rows.array[slice(*chunk)], content(*chunk))
    for chunk in set(CHUNKS) - rows.done:
        rows.fill(*chunk, content(*chunk))
    np.testing.assert_array_equal(Rows(path, (8, 4)).array, content(0, 8))
    assert Rows(path, (8, 4)).done == set(CHUNKS)
