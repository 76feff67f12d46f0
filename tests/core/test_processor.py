"""The libraries use the same instructions on every machine, whatever its processor has besides."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from xcutils.core.errors import UserError
from xcutils.core.processor import AVX2, kept_to_avx2, multiplies_bfloat16, portable, same_everywhere


def after(facts: Path, **given: str) -> dict[str, str]:
    """What stands in the environment of AVX2 when the processor is such, and `given` stood there before."""
    with mock.patch.dict(os.environ, given):
        for name in {*AVX2, "XC_PORTABLE"} - given.keys():
            os.environ.pop(name, None)
        same_everywhere(facts)
        return {name: os.environ[name] for name in AVX2 if name in os.environ}


@pytest.fixture
def write(tmp_path):
    def facts(flags: str) -> Path:
        (tmp_path / "cpuinfo").write_text(f"model name\t: one\nflags\t\t: fpu avx avx2 {flags}\n")
        return tmp_path / "cpuinfo"

    return facts


def test_a_processor_with_avx512_is_kept_to_avx2(write):
    assert after(write("avx512f avx512_vnni")) == AVX2


def test_what_the_environment_says_stays(write):
    assert after(write("avx512f"), OPENBLAS_CORETYPE="Zen") == {**AVX2, "OPENBLAS_CORETYPE": "Zen"}


def test_nothing_is_set_for_a_processor_without(write, tmp_path):
    assert after(write("avx_vnni")) == after(tmp_path / "missing") == {}


def test_the_processor_is_used_as_it_is_if_the_user_says_so(write):
    assert after(write("avx512f"), XC_PORTABLE="0") == {}
    assert after(write("avx512f"), XC_PORTABLE="1") == AVX2


def test_a_wrong_choice_keeps_to_avx2_and_is_refused_by_the_first_who_asks(write, monkeypatch):
    assert after(write("avx512f"), XC_PORTABLE="no") == AVX2
    for given, found in {"0": False, "1": True}.items():
        monkeypatch.setenv("XC_PORTABLE", given)
        assert portable() is found
    for given in ("", "no", "2", " 1"):
        monkeypatch.setenv("XC_PORTABLE", given)
        with pytest.raises(UserError, match=f"XC_PORTABLE is {given!r}; it must be 1 .* or 0 "):
            portable()
    monkeypatch.delenv("XC_PORTABLE")
    assert portable()


@pytest.mark.parametrize(
    "flags, found", [("avx512f", False), ("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True), ("bf16", False)]
)
def test_bfloat16_is_multiplied_by_two_kinds_of_units(write, flags, found):
    assert multiplies_bfloat16(write(flags)) == found


@pytest.mark.parametrize("given, found", [("AVX2", True), ("avx2", True), ("AVX512_CORE_BF16", False), (None, False)])
def test_what_onednn_is_kept_to_is_what_the_environment_says(monkeypatch, given, found):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if given is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", given)
    assert kept_to_avx2() == found


@pytest.mark.parametrize("module", ["stages", "unidec", "longtail.cli"])
def test_stages_and_predictions_run_without_avx512(module):
    code = (
        f"import {module}, torch; from numpy._core._multiarray_umath import __cpu_features__ as has\n"
        "print(torch.backends.cpu.get_cpu_capability(), *(name for name in has if has[name]))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in {*AVX2, "XC_PORTABLE"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"AVX512", *AVX2["NPY_DISABLE_CPU_FEATURES"].split()} & set(done.stdout.split())
