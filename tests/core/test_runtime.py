import io
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from xcutils.core import console, processor, runtime
from xcutils.core.errors import UserError


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """No XC_* variable from outside, and the thread count given back."""
    monkeypatch.delenv("XC_THREADS", raising=False)
    monkeypatch.delenv("XC_DEVICE", raising=False)
    monkeypatch.delenv("XC_MEMORY", raising=False)
    monkeypatch.delenv("XC_PRECISION", raising=False)
    monkeypatch.delenv("XC_PORTABLE", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_seed_fixes_every_global_generator():
    drawn = []
    for seed in (3, 3, 4):
        runtime.start(seed)
        drawn.append((torch.rand(1).item(), np.random.rand()))
    assert drawn[0] == drawn[1] and not set(drawn[0]) & set(drawn[2])


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("XC_THREADS", "3")
    runtime.start()
    assert torch.get_num_threads() == 3
    monkeypatch.delenv("XC_THREADS")
    runtime.start()
    assert torch.get_num_threads() == 3  # without the variable nothing is set


@pytest.mark.parametrize("threads", ["0", "-1", "two", "1.5", "", " 2", "²"])
def test_a_wrong_thread_count_is_refused(monkeypatch, threads):
    monkeypatch.setenv("XC_THREADS", threads)
    with pytest.raises(UserError, match="XC_THREADS.*whole number") as caught:
        runtime.start()
    assert repr(threads) in str(caught.value)


def test_the_device_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("XC_DEVICE", "cpu")
    assert runtime.device() == torch.device("cpu")
    assert runtime.start() == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["quantum", "cuda:99", "xpu"])
def test_a_device_that_is_not_there_is_refused(monkeypatch, wanted):
    monkeypatch.setenv("XC_DEVICE", wanted)
    with pytest.raises(UserError, match=f"XC_DEVICE={wanted} cannot be used.*cpu") as caught:
        runtime.device()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cuda", "mps", "kind"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "cpu"), (False, False, "cpu")]
)
def test_cuda_comes_first_and_mps_only_when_it_is_asked_for(monkeypatch, cuda, mps, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert runtime.device().type == kind


# --- precision --------------------------------------------------------------------------------------------------------

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda", "mps"))


@pytest.fixture
def computer(monkeypatch):
    """A function that makes a processor: does it multiply bfloat16, and what the user has set."""

    def make(*, unit: bool, gpu: bool = False, **given: str) -> None:
        monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: unit)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: gpu)
        for name in ("XC_PRECISION", "XC_PORTABLE", "ONEDNN_MAX_CPU_ISA"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        if given.get("XC_PORTABLE") != "0":
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")

    return make


@pytest.mark.parametrize("unit", [False, True])
def test_a_default_run_on_a_cpu_is_in_float32_whatever_the_processor_has(computer, unit):
    computer(unit=unit)
    assert runtime.precision(CPU) == torch.float32
    with runtime.mixed_precision(CPU):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("given", ["auto", "bfloat16"])
def test_bfloat16_is_used_where_the_processor_has_it_and_machines_need_not_agree(computer, given):
    computer(unit=True, XC_PORTABLE="0", XC_PRECISION=given)
    assert runtime.precision(CPU) == torch.bfloat16
    with runtime.mixed_precision(CPU):
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    computer(unit=True, XC_PORTABLE="0", XC_PRECISION="float32")
    assert runtime.precision(CPU) == torch.float32


def test_bfloat16_is_never_emulated(computer):
    computer(unit=False, XC_PORTABLE="0")
    assert runtime.precision(CPU) == torch.float32
    computer(unit=False, XC_PORTABLE="0", XC_PRECISION="bfloat16")
    with pytest.raises(UserError, match="neither AVX-512-BF16 nor AMX.*XC_PRECISION=float32"):
        runtime.precision(CPU)
    computer(unit=True, XC_PRECISION="bfloat16")
    with pytest.raises(UserError, match="keep to AVX2.*XC_PORTABLE=0"):
        runtime.start()
    computer(unit=True, XC_PORTABLE="0", XC_PRECISION="bfloat16")
    with pytest.raises(UserError, match="mps has no unit"):
        runtime.precision(MPS)


def test_a_gpu_that_has_bfloat16_uses_it_unless_told_otherwise(computer):
    computer(unit=False, gpu=True)
    assert runtime.precision(CUDA) == torch.bfloat16 and runtime.precision(MPS) == torch.float32
    computer(unit=False, gpu=True, XC_PRECISION="float32")
    assert runtime.precision(CUDA) == torch.float32
    computer(unit=True, gpu=False)
    assert runtime.precision(CUDA) == torch.float32


@pytest.mark.parametrize("given", ["", "half", "Float32"])
def test_another_precision_is_refused(computer, given):
    computer(unit=True, XC_PRECISION=given)
    with pytest.raises(UserError, match=f"XC_PRECISION is {given!r}; it must be auto, float32 or bfloat16"):
        runtime.start()


# --- commands ---------------------------------------------------------------------------------------------------------


def raising(error: BaseException):
    @console.command
    def main():
        """What it does."""
        raise error

    return main


def test_a_command_returns_what_its_function_does(capsys):
    assert console.command(lambda a, b: a - b)(5, b=2) == 3
    assert raising(ValueError()).__doc__ == "What it does."
    assert capsys.readouterr() == ("", "")


def test_a_user_error_is_one_sentence_and_exit_code_one(capsys):
    with pytest.raises(SystemExit) as caught:
        raising(UserError("the file is missing: make it."))()
    assert caught.value.code == 1
    assert capsys.readouterr() == ("", "error: the file is missing: make it.\n")


def test_an_interrupt_ends_quietly(capsys):
    with pytest.raises(SystemExit) as caught:
        raising(KeyboardInterrupt())()
    assert caught.value.code == 130 and "Traceback" not in capsys.readouterr().err


def test_a_programmers_mistake_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())()


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Time that moves on by ten seconds at each look."""
    looks = iter(range(0, 10**6, 10))
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(looks)))


def test_without_a_terminal_a_line_comes_now_and_then(clock, capsys):
    assert list(console.progress([5, 6, 7, 8], "work", unit="doc")) == [5, 6, 7, 8]
    assert capsys.readouterr() == ("", "work: 2/4 (0.1 doc/s, 20 s left)\nwork: 4/4 (0.1 doc/s, 0 s left)\n")


def test_a_total_may_be_unknown_or_given(clock, capsys):
    assert list(console.progress(iter("ab"), "work")) == ["a", "b"]
    assert list(console.progress(iter("ab"), "work", total=8)) == ["a", "b"]
    assert capsys.readouterr().err == "work: 2/? (0.1 it/s)\nwork: 2/8 (0.1 it/s, 60 s left)\n"


def test_fast_work_is_silent(capsys):
    assert list(console.progress(range(100), "work")) == list(range(100))
    assert list(console.progress([], "work")) == []
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(console.sys, "stderr", terminal)
    assert list(console.progress([1, 2], "work")) == [1, 2]
    assert "work" in terminal.getvalue() and "2/2" in terminal.getvalue()


def test_the_training_loop_names_fit_and_epoch(clock, capsys):
    assert list(console.epochs("encoder (final)")([1, 2], "epoch 3/4")) == [1, 2]
    assert capsys.readouterr().err == "encoder (final) epoch 3/4: 2/2 (0.1 batch/s, 0 s left)\n"


def test_say_says_one_line(capsys):
    console.say("done.")
    assert capsys.readouterr() == ("", "done.\n")


# --- memory


def machine(root, **files) -> None:
    """A file tree like Linux's, with 1000 pages held by this process and 8 GiB available."""
    files = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", **files}
    files = {"proc/self/statm": "5000 1000 10 1 0 1 0", "proc/self/cgroup": "", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


OWN, GIB = 1000 * os.sysconf("SC_PAGE_SIZE"), 2**30


def test_memory_is_what_is_available_and_what_is_held_already(tmp_path):
    machine(tmp_path)
    assert runtime.memory(tmp_path) == OWN + 8 * GIB


def test_memory_respects_control_groups_of_version_2(tmp_path):
    group = "sys/fs/cgroup/user/job"
    machine(tmp_path, **{"proc/self/cgroup": "0::/user/job\n", f"{group}/memory.max": "max\n"})
    assert runtime.memory(tmp_path) == OWN + 8 * GIB
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            f"{group}/memory.max": f"{6 * GIB}\n",
            f"{group}/memory.current": f"{GIB}\n",
        },
    )
    assert runtime.memory(tmp_path) == OWN + 2 * GIB  # the parent's limit is the tighter one


def test_memory_respects_control_groups_of_version_1(tmp_path):
    group = "sys/fs/cgroup/memory/job"
    machine(
        tmp_path,
        **{
            "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n",
            f"{group}/memory.limit_in_bytes": f"{3 * GIB}",
            f"{group}/memory.usage_in_bytes": f"{2 * GIB}",
            f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
        },
    )
    assert runtime.memory(tmp_path) == OWN + 2 * GIB


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}
    machine(tmp_path, **files)
    assert runtime.memory(tmp_path) == OWN


def test_memory_without_proc_is_the_machine_s(tmp_path):
    assert runtime.memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_xc_memory_overrules(tmp_path, monkeypatch):
    monkeypatch.setenv("XC_MEMORY", "2.5")
    assert runtime.memory(tmp_path) == 2.5e9


@pytest.mark.parametrize("given", ["", "0", "-3", "lots", "nan", "inf", "4 GB"])
def test_xc_memory_must_be_a_number_of_gigabytes(monkeypatch, given):
    monkeypatch.setenv("XC_MEMORY", given)
    with pytest.raises(UserError, match="XC_MEMORY is .*must be a number of gigabytes above 0"):
        runtime.memory()


def test_the_speed_is_measured_quickly():
    begin = time.perf_counter()
    threads, speed = runtime.strength()
    assert threads >= 1 and 1e7 < speed < 1e15 and time.perf_counter() - begin < 5
