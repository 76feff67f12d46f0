"""What every test of a stage shares."""

from collections.abc import Iterator

import pytest

from xcutils.core import runtime


@pytest.fixture(scope="package", autouse=True)
def quick_look_at_the_machine() -> Iterator[None]:
    """The machine's speed by one small product: stages start hundreds of times here, and the usual look takes 0.1 s."""
    works = runtime.strength
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "strength", lambda: works(size=64, seconds=0.0))
        yield
