"""The service against its own OpenAPI document: schemathesis makes up requests, right ones and wrong ones."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks

from testing.service import running
from tests.service.conftest import LOCKED

pytestmark = pytest.mark.stage
load_all_checks()

# A request may be as described and still name a label that is not there, or ask for a precision out of reach.
REFUSED_AS_DESCRIBED = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]


@pytest.fixture(scope="module")
def described(tiny_bundle, tmp_path_factory) -> Iterator[schemathesis.BaseSchema]:
    """The document of a service whose labels may be changed."""
    import shutil

    folder = tmp_path_factory.mktemp("openapi")
    bundle = shutil.copytree(tiny_bundle, folder / "bundle")
    with running(folder / "log", "--bundle", bundle) as service:
        yield schemathesis.openapi.from_url(f"{service.address}/openapi.json")


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_path_answers_as_it_is_described(case):
    locked = case.operation.definition.raw.get("security")
    case.call_and_validate(headers=LOCKED if locked else None, excluded_checks=REFUSED_AS_DESCRIBED)
