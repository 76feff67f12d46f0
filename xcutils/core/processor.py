"""Which instructions of the processor the libraries use: by default the same ones on every x86 machine.

With AVX-512 torch, numpy and their BLAS add in another order than with AVX2. The last digits of a sum differ, sooner or
later a document falls into another cluster, and at the end P@1 differs by up to half a point, as with another seed.
XC_PORTABLE=0 lets them use what the processor has: faster, and no longer the same everywhere.
"""

import os
from functools import cache
from pathlib import Path

from xcutils.core.errors import UserError

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # torch's matrix products
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # torch's products in bfloat16, and our own with XC_PORTABLE=0
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # what Linux calls the units that multiply it; others emulate it
CPU_FACTS = Path("/proc/cpuinfo")


def portable() -> bool:
    """XC_PORTABLE: whether the libraries keep to what every machine has (1, the default)."""
    given = os.environ.get("XC_PORTABLE", "1")
    if given not in ("0", "1"):
        raise UserError(f"XC_PORTABLE is {given!r}; it must be 1 (keep to AVX2) or 0 (use what the processor has).")
    return given == "1"


def same_everywhere(facts: Path = CPU_FACTS) -> None:
    """Keep to AVX2 where the processor has AVX-512, unless the environment says otherwise; before numpy is loaded.

    A wrong XC_PORTABLE is refused later, by `portable`, where a refusal is shown as a sentence.
    facts  what Linux says of the processor; elsewhere nothing is set
    """
    if os.environ.get("XC_PORTABLE") != "0" and "avx512f" in _words(facts):
        for name, value in AVX2.items():
            os.environ.setdefault(name, value)


@cache
def multiplies_bfloat16(facts: Path = CPU_FACTS) -> bool:
    """Whether the processor has a unit for products in bfloat16."""
    return bool(BFLOAT16 & _words(facts))


def kept_to_avx2() -> bool:
    """Whether oneDNN, which multiplies bfloat16, is kept to AVX2, by `same_everywhere` or by the user."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() == "AVX2"


def _words(facts: Path) -> set[str]:
    return set(facts.read_text(encoding="utf-8", errors="replace").split()) if facts.is_file() else set()
