"""The service against its own OpenAPI document: schemathesis makes up requests, right ones and wrong ones."""

import shutil
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from testing.service import running
from tests.service.conftest import LOCKED

pytestmark = pytest.mark.stage
load_all_checks()

PATHS = [
    "POST /predict",
    "POST /explain",
    "GET /labels",
    "POST /labels",
    "PATCH /labels",
    "POST /labels/remove",
    "POST /labels/undo",
    "GET /labels/{id}",
    "GET /health",
    "GET /ready",
    "GET /metrics",
    "GET /version",
]
NEVER_WRONG = ("GET /health", "GET /ready", "GET /metrics", "GET /version", "GET /labels/{id}", "POST /labels/undo")
CASES = [(path, mode) for path in PATHS for mode in GenerationMode if mode.is_positive or path not in NEVER_WRONG]
# A request may be as described and still name a label that is not there, or ask for a precision out of reach; and the
# token that is sent here stays in the requests that shall have none (test_only_who_knows_the_token_changes_labels).
LEFT_OUT = [CHECKS.get_one("positive_data_acceptance"), CHECKS.get_one("ignored_auth")]
SETTINGS = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def described(tiny_bundle, tmp_path_factory) -> Iterator:
    """The document of a service whose labels may be changed."""
    folder = tmp_path_factory.mktemp("openapi")
    bundle = shutil.copytree(tiny_bundle, folder / "bundle")
    with running(folder / "log", "--bundle", bundle) as service:
        yield schemathesis.openapi.from_url(f"{service.address}/openapi.json")
        assert "Traceback" not in service.said()


def test_the_document_names_every_path(described):
    found = {f"{method.upper()} {path}" for path in described for method in described[path]}
    assert found == set(PATHS)


@pytest.mark.parametrize("path, mode", CASES, ids=lambda part: getattr(part, "value", part))
def test_a_path_answers_as_it_is_described(described, path, mode):
    method, _, place = path.partition(" ")
    operation = described[place][method]
    headers = LOCKED if operation.definition.raw.get("security") else None

    @SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case):
        case.call_and_validate(headers=headers, excluded_checks=LEFT_OUT)

    answers()
