"""Which instructions of the processor the libraries use: the same ones on every x86 machine.

With AVX-512 torch, numpy and their BLAS add in another order than with AVX2. The last digits of a sum differ, sooner or
later a document falls into another cluster, and at the end P@1 differs by up to half a point, as with another seed.
"""

import os
from pathlib import Path

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # torch's matrix products
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}


def same_everywhere(facts: Path = Path("/proc/cpuinfo")) -> None:
    """Keep to AVX2 where the processor has AVX-512, unless the environment says otherwise; before numpy is loaded.

    facts  what Linux says of the processor; elsewhere nothing is set
    """
    if facts.is_file() and "avx512f" in facts.read_text(encoding="utf-8", errors="replace").split():
        for name, value in AVX2.items():
            os.environ.setdefault(name, value)
