"""The table of directions: its settings, claims and formulas."""

import itertools
import re

import pytest

from study.directions import DIRECTIONS, Claim
from study.sparse import SPARSE
from study.verdicts import claims, name_of
from tests.study.made_up import ROW_NAMES, SETTINGS, UNIDEC_PARAMS


def test_every_direction_has_differences_of_known_settings_and_every_setting_is_in_one():
    assert list(DIRECTIONS) == [f"D{i}" for i in range(1, 21)]
    terms = [term for claim in claims() for term in claim.terms]
    assert {setting for _, setting, _ in terms} == set(SETTINGS)
    assert {row for _, _, row in terms} <= ROW_NAMES
    assert {claim.metric for claim in claims()} <= {"P@1", "P@5", "PSP@1", "PSP@5", "C@1", "C@5", "R@10"}
    for claim in claims():
        assert sum(weight for weight, _, _ in claim.terms) == 0, claim
        unified = {SETTINGS[setting].start == UNIDEC_PARAMS for _, setting, _ in claim.terms}
        assert len(unified) == 1 and ("concatenated" not in claim.place or unified == {True})


def test_a_size_of_the_paper_has_the_expected_sign():
    for claim in claims():
        sizes = [float(size) for size in re.findall(r"[+-]\d+\.\d+", claim.paper)]
        wanted = {">": max, ">=": max, "<": lambda s: -min(s), "=": lambda s: 1, "?": lambda s: 1}[claim.expected]
        assert not sizes or wanted(sizes) > 0, claim
        assert sizes or claim.paper.startswith("(")


def test_terms_of_a_formula():
    claim = Claim("classifier/tail R@10", "a-K1 - b:fused + c:classifier/head - a-K1", ">", "+1.0")
    assert claim.metric == "R@10"
    tail = "classifier, tail"
    assert claim.terms == [(1, "a-K1", tail), (-1, "b", "fused"), (1, "c", "classifier, head"), (-1, "a-K1", tail)]


def test_names_of_experiments_are_stable_and_can_be_names():
    assert name_of("tokens-K4096", 1) == "study-tokens-K4096-s1"
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", name) for name in SETTINGS)
    assert len({str(setting) for setting in SETTINGS.values()}) == len(SETTINGS)


CHANGED = {  # what may be different within a row
    "D1": {"K"},
    "D3": {"K"},
    "D4": {"cluster.head"},
    "D5": {"cluster.algorithm", "cluster.space"},
    "D11": {"gandalf.labels", "gandalf.targets"},
    "D10": {"gandalf.delta", "gandalf.targets"},
    "D14": {"train.classifier_loss"},
    "D15": set(),
    "D16": {"beta", "eta"},
    "D17": {"train.symmetric"},
    "D18": {"gandalf.labels", "gandalf.targets", "encoder.epochs"},
    "D20": {"classifier.optimizer", "classifier.lr"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_settings_of_a_row_differ_in_what_it_is_about_alone(name):
    for claim in DIRECTIONS[name].claims:
        used = [SETTINGS[setting] for _, setting, _ in claim.terms]
        assert len({setting.start for setting in used}) == 1
        for one, other in itertools.combinations(used, 2):
            names = {key for key in one.changes | other.changes if one.changes.get(key) != other.changes.get(key)}
            assert names <= CHANGED[name], claim


def test_all_settings_of_a_dataset_share_what_prepare_and_embed_write():
    for name, setting in SETTINGS.items():
        shared = {key: value for key, value in setting.changes.items() if key.startswith(("prepare", "embed", "data"))}
        own = {"dataset": SPARSE} if name.startswith("sparse-") else {}
        assert shared == {"prepare.refit": False, **own}
