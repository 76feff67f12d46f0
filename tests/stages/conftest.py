"""What every test of a stage shares."""

from collections.abc import Iterator
from functools import cache

import pytest

from xcutils.core import artifacts, runtime


@pytest.fixture(scope="package", autouse=True)
def quick_starts() -> Iterator[None]:
    """A stage starts hundreds of times here: what stays the same is looked up once, the machine's speed briefly."""
    speed = runtime.strength
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "strength", lambda: speed(size=64, seconds=0.0))
        patch.setattr(runtime, "code_of", cache(runtime.code_of))
        patch.setattr(artifacts, "libraries", cache(artifacts.libraries))
        yield
