"""The phases of the pipeline, one module each; `python -m stages.<name> <in>... <out>`."""

import importlib.util
import os
import sys

from xcutils import processor

# Idle OpenMP workers sleep instead of spinning: on a shared machine spinning costs far more than it saves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
processor.same_everywhere()  # before numpy and torch are loaded

if importlib.util.find_spec("torch") is None:
    sys.exit(f"error: {sys.executable} lacks Longtail's packages: run `make env`, then `source .venv/bin/activate`.")
