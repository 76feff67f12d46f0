"""The libraries use the same instructions on every machine, whatever its processor has besides."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from xcutils.core.processor import AVX2, same_everywhere


def after(facts: Path, **given: str) -> dict[str, str]:
    """What stands in the environment of AVX2 when the processor is such, and `given` stood there before."""
    with mock.patch.dict(os.environ, given):
        for name in AVX2.keys() - given.keys():
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


@pytest.mark.parametrize("module", ["stages", "unidec", "longtail.cli"])
def test_stages_and_predictions_run_without_avx512(module):
    code = (
        f"import {module}, torch; from numpy._core._multiarray_umath import __cpu_features__ as has\n"
        "print(torch.backends.cpu.get_cpu_capability(), *(name for name in has if has[name]))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in AVX2}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"AVX512", *AVX2["NPY_DISABLE_CPU_FEATURES"].split()} & set(done.stdout.split())
