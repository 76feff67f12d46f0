"""The study's table of directions, its arithmetic and verdicts, and going on where it was, with a made-up DVC."""

import itertools
import json
import re

import pytest
from click.testing import CliRunner

from study import experiments, findings, records
from study.directions import DIRECTIONS, Claim, Direction, settings
from study.findings import State, make, name_of, per_seed, verdict
from study.sparse import SPARSE
from xcutils.core import params
from xcutils.core.errors import UserError
from xcutils.core.params import read

SETTINGS = settings()
ROW_NAMES = {"encoder", "classifier", "fused", "concatenated", "classifier, head", "classifier, tail"}


def made_up_files() -> dict[str, dict]:
    """Parameter files with just the names that the settings change, and two recipes more."""
    out: dict[str, dict] = {"params.yaml": {"seed": 0, "dataset": "d"}, findings.UNIDEC: {"seed": 0, "train": {}}}
    for setting in SETTINGS.values():
        for name in setting.changes:
            file = findings.UNIDEC if setting.start == findings.UNIDEC and "prepare" not in name else "params.yaml"
            section, _, key = name.rpartition(".")
            (out[file].setdefault(section, {}) if section else out[file]).setdefault(key)
    names = {setting.start for setting in SETTINGS.values()} - set(out) | {"recipes/dexa-gandalf.yaml"}
    recipes = {name: out["params.yaml"] | {"K": name} for name in sorted(names)}
    return out | recipes | {"recipes/unidec.yaml": out[findings.UNIDEC] | {"eta": 7}}


FILES = made_up_files()


@pytest.fixture
def unchecked(monkeypatch):
    """Any value is good."""
    monkeypatch.setattr(params, "check_file", lambda *_: None)


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_direction_has_differences_of_known_settings_and_every_setting_is_in_one():
    assert list(DIRECTIONS) == [f"D{i}" for i in range(1, 21)]
    terms = [term for claim in findings.claims() for term in claim.terms]
    assert {setting for _, setting, _ in terms} == set(SETTINGS)
    assert {row for _, _, row in terms} <= ROW_NAMES
    assert {claim.metric for claim in findings.claims()} <= {"P@1", "P@5", "PSP@1", "PSP@5", "C@1", "C@5", "R@10"}
    for claim in findings.claims():
        assert sum(weight for weight, _, _ in claim.terms) == 0, claim
        unified = {SETTINGS[setting].start == findings.UNIDEC for _, setting, _ in claim.terms}
        assert len(unified) == 1 and ("concatenated" not in claim.place or unified == {True})


def test_a_size_of_the_paper_has_the_expected_sign():
    for claim in findings.claims():
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


@pytest.mark.parametrize("start", sorted({setting.start for setting in SETTINGS.values()}))
def test_every_setting_is_valid_in_this_repository(start):
    root = experiments.ROOT
    files = {name: read(root / name) for name in {"params.yaml", findings.UNIDEC, start}}
    for name, setting in SETTINGS.items():
        if setting.start == start:
            made = make(name, setting, files, seed=2)
            file = findings.UNIDEC if made.folder else "params.yaml"
            assert made.values[file]["seed"] == 2


def test_the_whole_study_can_be_made_in_this_repository():
    files = findings.read_files(experiments.ROOT)
    assert set(findings.make_all(files)) >= {*findings.recipes(files), *(name_of(name, 0) for name in SETTINGS)}
    methods = {"dexa", "ngame", "dpr", "ance", "siamesexml", "dexml", "renee", "depsl", "unidec"}
    assert methods <= {name.removeprefix("study-recipe-") for name in findings.recipes(files)}


# --- experiments ------------------------------------------------------------------------------------------------------


def test_make_takes_the_values_of_the_file_it_starts_from(unchecked):
    made = make("a", SETTINGS["dpr"], FILES, seed=1)
    values = made.values["params.yaml"]
    assert (values["K"], values["seed"], values["prepare.refit"]) == ("recipes/dpr.yaml", 1, False)
    assert "K=recipes/dpr.yaml" in findings.arguments(made, FILES)
    assert make("a", SETTINGS["dpr"], FILES).values["params.yaml"]["seed"] == 0


def test_make_for_the_second_pipeline_changes_both_files(unchecked):
    made = make("a", SETTINGS["unidec"], FILES, seed=1)
    assert made.values["params.yaml"] == {"dataset": "d", "prepare.refit": False}
    assert made.values[findings.UNIDEC]["eta"] == 6 and "prepare.refit" not in made.values[findings.UNIDEC]
    words = findings.arguments(made, FILES)
    assert words[0] == "unidec/dvc.yaml"
    assert {"unidec/params.yaml:seed=1", "unidec/params.yaml:eta=6", "prepare.refit=false"} <= set(words)


def test_make_refuses_what_is_not_there(unchecked):
    with pytest.raises(UserError, match="recipes/dpr.yaml is missing"):
        make("a", SETTINGS["dpr"], {"params.yaml": FILES["params.yaml"]})
    files = FILES | {"recipes/dpr.yaml": FILES["recipes/dpr.yaml"] | {"old": 1}}
    with pytest.raises(UserError, match="do not have the same lines: old"):
        make("a", SETTINGS["dpr"], files)
    with pytest.raises(UserError, match="train.symetric is not a parameter"):
        make("a", findings.Setting(findings.UNIDEC, {"train.symetric": True}), FILES)


def test_make_checks_the_values():
    with pytest.raises(UserError):  # the made-up files have no good values
        make("a", SETTINGS["tokens-K0"], FILES)


def test_make_all_refuses_settings_that_are_the_same(unchecked):
    every = findings.make_all(FILES)
    assert len(every) == len(SETTINGS) * len(findings.SEEDS) + len(findings.recipes(FILES))
    renee = FILES["recipes/renee.yaml"]
    untrained = renee | {"encoder": renee["encoder"] | {"epochs": 0}}
    with pytest.raises(UserError, match="M1-.* same parameters"):
        findings.make_all(FILES | {"recipes/renee.yaml": untrained})


def test_recipes_for_graphics_cards_are_left_out(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "unidec").mkdir()
    names = ["dexa", "dexa-gandalf", "dexa-131k", "dexa-1.3m", "ngame-titles-131k"]
    for name in ["params", "unidec/params", *(f"recipes/{name}" for name in names)]:
        (tmp_path / f"{name}.yaml").write_text("K: 0\n")
    files = findings.read_files(tmp_path)
    assert list(files) == ["params.yaml", findings.UNIDEC, "recipes/dexa-gandalf.yaml", "recipes/dexa.yaml"]
    assert list(findings.recipes(files)) == ["study-recipe-dexa-gandalf", "study-recipe-dexa"]


def test_order_is_first_seeds_recipes_and_other_seeds_of_what_is_quick():
    names = findings.order(("D4", "recipes"), State(), FILES, quick=120)
    settings_of = {setting for claim in DIRECTIONS["D4"].claims for _, setting, _ in claim.terms}
    first, last = [{name_of(name, seed) for name in settings_of} for seed in (0, 2)]
    assert set(names[:4]) == first and set(names[-4:]) == last
    assert names[4 : 4 + len(findings.recipes(FILES))] == list(findings.recipes(FILES))
    slow = State(seconds={"study-tokens-head-s0": 121.0, "study-softmax-head-s0": 119.0})
    names = findings.order(("D4",), slow, FILES, quick=120)
    assert names[4:] == [name_of(f"softmax-{k}", seed) for seed in (1, 2) for k in ("head", "K4096")]


def test_bins_are_rows(monkeypatch):
    import dvc.api
    from dvc.exceptions import DvcException

    text = 'place,row,bin,P@1,R@10\n"classifier, tail",classifier,tail,1.5,2.5\n'
    monkeypatch.setattr(dvc.api, "read", lambda *_, **__: text)
    assert findings.read_bins("abc") == {"classifier, tail": {"P@1": 1.5, "R@10": 2.5}}

    def lost(*_, **__):
        raise DvcException("not in the cache")

    monkeypatch.setattr(dvc.api, "read", lost)
    assert findings.read_bins("abc") == {}


# --- differences ------------------------------------------------------------------------------------------------------


def state_of(**values: list[float]) -> State:
    """The encoder's P@1 of each setting for seeds 0, 1, ..."""
    rows = {
        name_of(name, seed): {"encoder": dict.fromkeys(findings.FIGURES, value)}
        for name, some in values.items()
        for seed, value in enumerate(some)
    }
    return State(rows=rows)


def test_differences_are_of_the_same_seed_and_of_seeds_that_all_have():
    claim = Claim("encoder P@1", "a - b", ">", "+1.0")
    state = state_of(a=[5.0, 6.0, 7.0], b=[1.0, 4.0])
    assert per_seed(claim, state) == {0: [5.0, -1.0], 1: [6.0, -4.0]}
    four = Claim("encoder P@1", "a - b - b + a", ">", "+1.0")
    assert [sum(parts) for parts in per_seed(four, state).values()] == [8.0, 4.0]
    assert per_seed(Claim("fused P@1", "a - b", ">", "+1.0"), state) == {}
    assert per_seed(claim, State()) == {}


@pytest.mark.parametrize(
    "values, sign",
    [
        ([1.0, 2.0, 1.5], 1),
        ([-1.0, -2.0, -1.5], -1),
        ([0.1, 3.0, 0.1], 0),  # the mean is within the standard deviation
        ([2.0, 2.2, -0.1], 0),  # seeds disagree
        ([0.0, 1.0, 1.0], 0),
        ([1.0], 1),
        ([0.3], 0),  # within the noise of 0.4
        ([-0.5], -1),
    ],
)
def test_sign_is_zero_within_the_spread(values, sign):
    assert findings.sign_of(values, noise=0.4) == sign


@pytest.mark.parametrize(
    "expected, up, nothing, down",
    [
        (">", "agrees", "no difference", "does not agree"),
        (">=", "agrees", "agrees", "does not agree"),
        ("<", "does not agree", "no difference", "agrees"),
        ("=", "does not agree", "agrees", "does not agree"),
        ("?", "rises", "no difference", "falls"),
    ],
)
def test_verdicts(expected, up, nothing, down):
    assert verdict([1.0, 1.1, 0.9], expected) == up
    assert verdict([1.0, -1.1, 0.9], expected) == nothing
    assert verdict([-1.0, -1.1, -0.9], expected) == down
    assert verdict([0.4, 0.41, 0.42], "=") == "agrees"  # a clear difference, and too small to matter
    assert verdict([5.0, -6.0, 4.0], "=") == "no difference"  # not a clear one, and not nearly none


def test_a_single_seed_is_judged_by_the_spread_of_the_others(monkeypatch):
    many, one = Claim("encoder P@1", "a - b", ">", "+1.0"), Claim("encoder P@1", "c - d", ">", "+1.0")
    both = Claim("encoder P@1", "c - d - d + c", ">", "+1.0")
    monkeypatch.setattr(findings, "claims", lambda: [many, one])
    state = state_of(a=[1.0, 2.0, 3.0], b=[0.0, 0.0, 0.0], c=[1.2], d=[0.0])
    assert findings.noises(state) == {"P@1": 1.0}
    assert findings.claim_line(one, state, {"P@1": 1.0})[-4:] == ["+1.20", "1.20 - 0.00", "1", "agrees"]
    assert findings.claim_line(one, state, {"P@1": 1.3})[-1] == "no difference"
    assert findings.claim_line(both, state, {"P@1": 1.6})[-1] == "agrees"  # 2.4, of four runs: beyond 1.6 * sqrt(2)
    assert findings.claim_line(both, state, {"P@1": 1.8})[-1] == "no difference"
    shown = findings.claim_line(many, state, {})
    assert shown[2:] == ["> 0", "+1.0", "+2.00 ± 1.00 (+1.00 to +3.00)", "2.00 - 0.00", "3", "agrees"]


# --- document ---------------------------------------------------------------------------------------------------------


def test_document_says_what_has_not_been_run(unchecked):
    text = findings.document(State(), FILES, {})
    for name, direction in DIRECTIONS.items():
        assert f"| {name}. {direction.statement} | {len(direction.claims)} not run yet |" in text
    assert text.count("## D") == len(DIRECTIONS)
    assert "| dexa-gandalf | not run yet |" in text and "older code" not in text


def test_document_has_figures_explanations_and_whole_tables():
    values = dict.fromkeys(findings.FIGURES, 50.0) | {"C@1": 1.0, "R@10": 2.0}
    names = [name_of(name, seed) for name in SETTINGS for seed in findings.SEEDS] + list(findings.recipes(FILES))
    state = State(rows={name: dict.fromkeys(ROW_NAMES, values) for name in names}, seconds={names[0]: 61.4})
    state.rows["study-tokens-K4096-s0"] = dict.fromkeys(ROW_NAMES, values | {"P@1": 53.0})
    state.older = {names[0]: ["a.py"], names[1]: []}
    text = findings.document(state, FILES, {"D1": "Because of this.\n", "D2": None})
    assert "not run yet" not in text
    row = "| `tokens-K4096 - tokens-K0` | encoder P@1 | > 0 | +7.27; +10.72 | +1.00 ± 1.73 (+0.00 to +3.00) |"
    assert f"{row} 51.00 - 50.00 | 3 | no difference |\n" in text
    section = text[text.index("## D1.") : text.index("## D2.")]
    assert section.endswith("|\n\nBecause of this.\n\n")
    assert f"1 of {len(names)} experiments ran with older code" in text
    assert "| dexa-gandalf | fused | 50.00 |" in text and "| unidec | concatenated | 50.00 |" in text
    assert re.search(r"\| tokens-K0 \| params.yaml \| .*`encoder.loss=triplet`.* \| 61 \|", text)
    tables = [list(lines) for bar, lines in itertools.groupby(text.splitlines(), lambda s: s[:1] == "|") if bar]
    assert all(len({line.count("|") for line in lines}) == 1 for lines in tables)


def test_a_direction_is_summed_up(monkeypatch):
    pairs = [Claim("encoder P@1", formula, ">", "+1.0") for formula in ("b - a", "b - a", "a - b")]
    monkeypatch.setattr(findings, "DIRECTIONS", {"D1": Direction("One.", "", "", pairs)})
    assert findings.summary(state_of(a=[1.0], b=[2.0]), {})[2] == "| D1. One. | 2 agrees, 1 does not agree |"


def test_notes_are_of_directions(tmp_path):
    file = tmp_path / "study-notes.yaml"
    assert findings.read_notes(file) == {}
    file.write_text("D1: |\n  One.\nD2:\n")
    assert findings.read_notes(file) == {"D1": "One.\n", "D2": None}
    file.write_text("D99: no\n")
    with pytest.raises(UserError, match="D99 is not a direction"):
        findings.read_notes(file)
    assert set(findings.read_notes(experiments.ROOT / "docs" / "study-notes.yaml")) == set(DIRECTIONS)


def test_a_sign_that_does_not_agree_is_explained():
    text = (experiments.ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    notes = findings.read_notes(experiments.ROOT / "docs" / "study-notes.yaml")
    verdicts = dict(re.findall(r"^\| (D\d+)\. .* \| ([^|]+) \|$", text, re.MULTILINE))
    assert set(verdicts) == set(DIRECTIONS)
    for name, found in verdicts.items():
        if "does not agree" in found:
            assert notes[name] and notes[name].strip() in text, f"{name} wants a note in docs/study-notes.yaml"


# --- going on ---------------------------------------------------------------------------------------------------------


class MadeUpDVC:
    """Experiments that take seconds of a made-up clock, fail, or stop the study; `code` is the hash of their file."""

    def __init__(self):
        self.done, self.ran, self.clock = {}, [], 0.0
        self.seconds, self.failing, self.stop_after = {}, set(), None
        self.code, self.code_of, self.figure = "first", {}, 50.0

    def __call__(self, *words: str, minutes: float | None = None) -> str:
        if words[:2] == ("exp", "list"):
            return "\n".join(self.done)
        if words[:2] == ("exp", "remove"):
            del self.done[words[2]]
            return ""
        assert words[:2] == ("exp", "run") and "--temp" in words
        name = words[words.index("--name") + 1]
        if self.stop_after == len(self.ran):
            raise KeyboardInterrupt
        self.ran.append(name)
        self.clock += self.seconds.get(name, 50.0)
        if name in self.failing:
            raise UserError("it broke")
        assert name not in self.done  # DVC refuses a name that is taken
        self.done[name], self.code_of[name] = words, self.code
        return ""

    def results(self, wanted) -> dict:
        figures = dict.fromkeys((*findings.FIGURES, "C@1", "R@10"), self.figure)
        return {one.name: (one.name, dict.fromkeys(ROW_NAMES, figures)) for one in wanted if one.name in self.done}


@pytest.fixture
def made_up(monkeypatch, unchecked):
    made = MadeUpDVC()
    monkeypatch.setattr(findings, "dvc", made)
    monkeypatch.setattr(findings, "read_files", lambda _: FILES)
    monkeypatch.setattr(findings, "read_bins", lambda _: {})
    monkeypatch.setattr(findings.time, "monotonic", lambda: made.clock)
    monkeypatch.setattr(findings.signal, "signal", lambda *_: None)
    monkeypatch.setattr(experiments, "results", made.results)
    monkeypatch.setattr(experiments, "code_of", lambda name, _: {"stages/encoder.py": made.code_of[name]})
    monkeypatch.setattr(experiments, "now", lambda _: made.code)
    monkeypatch.setattr(experiments, "warn_of_changes", lambda: None)
    return made


def study_of(docs, *words: str):
    return CliRunner().invoke(findings.main, [*words, "--docs", str(docs)])


def results_of(docs) -> dict[str, records.Record]:
    return records.read(docs / findings.RESULTS)


def test_a_stopped_study_goes_on_where_it_was(made_up, tmp_path):
    made_up.stop_after = 4  # the embeddings, three experiments
    assert study_of(tmp_path, "D4").exit_code == 130
    assert made_up.ran == ["study-embed", "study-tokens-head-s0", "study-tokens-K4096-s0", "study-softmax-head-s0"]
    assert {record.seconds for record in results_of(tmp_path).values()} == {50.0} and len(results_of(tmp_path)) == 3
    text = (tmp_path / "study.md").read_text()
    assert "| `tokens-head - tokens-K4096` | encoder P@1 | > 0 | +0.28; +1.64 | +0.00 | 50.00 - 50.00 | 1 |" in text
    assert "| `softmax-head - softmax-K4096` | encoder P@1 | > 0 | +0.28; +1.64 |  |  | 0 | not run yet |" in text
    made_up.stop_after = None
    assert study_of(tmp_path, "D4").exit_code == 0
    runs = [name for name in made_up.ran if name != "study-embed"]
    assert len(runs) == len(set(runs)) == 12 and runs[3] == "study-softmax-K4096-s0"
    assert "| 3 | no difference |" in (tmp_path / "study.md").read_text()
    before = len(made_up.ran)
    assert study_of(tmp_path, "D4").exit_code == 0
    assert len(made_up.ran) == before  # all is there


def test_slow_experiments_have_one_seed_also_after_a_stop(made_up, tmp_path):
    made_up.seconds = {"study-tokens-head-s0": 500.0}
    assert study_of(tmp_path, "D4").exit_code == 0
    seeds = [name for name in made_up.ran if name.endswith(("-s1", "-s2"))]
    assert seeds == [name_of(name, seed) for seed in (1, 2) for name in ("softmax-head", "softmax-K4096")]
    before = len(made_up.ran)
    assert study_of(tmp_path, "D4").exit_code == 0
    assert len(made_up.ran) == before


def test_a_failed_experiment_does_not_stop_the_others(made_up, tmp_path):
    made_up.failing = {"study-tokens-head-s0"}
    result = study_of(tmp_path, "D4")
    assert result.exit_code == 1
    assert len(made_up.ran) == 1 + 12
    made_up.failing = {name_of("tokens-head", 0), name_of("tokens-k-means", 0), name_of("tokens-centroids", 0)}
    assert study_of(tmp_path, "D5").exit_code == 1
    assert "not run yet" in (tmp_path / "study.md").read_text()


def test_the_study_stops_when_everything_fails(made_up, tmp_path):
    made_up.failing = {name_of(name, seed) for name in SETTINGS for seed in findings.SEEDS}
    assert study_of(tmp_path, "D4").exit_code == 1
    assert len(made_up.ran) == 1 + findings.TIRED


def test_the_sparse_dataset_is_made_and_copied_for_its_settings_alone(made_up, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(findings, "write_sparse", made.append)
    assert study_of(tmp_path, "D11").exit_code == 0
    sparse = {name: words for name, words in made_up.done.items() if "-sparse-" in name}
    assert len(sparse) == 6 and made == [experiments.ROOT] * (1 + 6)  # and before its embeddings
    assert made_up.ran[:2] == ["study-embed"] * 2
    for name, words in made_up.done.items():
        assert (f"dataset={SPARSE}" in words) == (name in sparse)
        assert ("--copy-paths" in words) == (name in sparse)
    for words in sparse.values():
        assert words[words.index("--copy-paths") + 1] == SPARSE


def test_recipes_run_whole_and_only_they(made_up, tmp_path):
    assert study_of(tmp_path, "recipes").exit_code == 0
    assert made_up.ran == list(findings.recipes(FILES))
    assert all("--force" in words for words in made_up.done.values())
    assert made_up.done["study-recipe-unidec"][6:] == ("unidec/dvc.yaml", "-S", "unidec/params.yaml:eta=7")
    assert "| unidec | encoder | 50.00 |" in (tmp_path / "study.md").read_text()


def test_fresh_runs_again_what_ran_with_other_code(made_up, tmp_path):
    assert study_of(tmp_path, "recipes").exit_code == 0
    count = len(made_up.ran)
    made_up.code = "second"
    assert study_of(tmp_path, "recipes").exit_code == 0
    assert len(made_up.ran) == count
    assert f"{count} of {count} experiments ran with older code" in (tmp_path / "study.md").read_text()
    assert study_of(tmp_path, "recipes", "--fresh").exit_code == 0
    assert made_up.ran[count:] == made_up.ran[:count]
    assert "older code" not in (tmp_path / "study.md").read_text()


def test_fresh_keeps_what_there_was_until_it_has_been_run_again(made_up, tmp_path):
    made_up.seconds = {"study-tokens-head-s0": 500.0}
    assert study_of(tmp_path, "D4", "--quick", "600").exit_code == 0
    made_up.code, made_up.stop_after = "second", len(made_up.ran) + 3
    made_up.failing = {"study-tokens-head-s0"}
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 130
    assert "11 of 12 experiments ran with older code" in (tmp_path / "study.md").read_text()
    made_up.stop_after, made_up.failing = None, set()
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 0  # also the seeds of what has become slow
    assert "older code" not in (tmp_path / "study.md").read_text()


def test_again_runs_all_that_is_asked_whole_whatever_is_there(made_up, tmp_path):
    assert study_of(tmp_path, "D4", "recipes").exit_code == 0
    first = [name for name in made_up.ran if name != "study-embed"]
    made_up.ran.clear()
    made_up.figure = 60.0
    assert study_of(tmp_path, "D4", "--again").exit_code == 0
    assert made_up.ran == [name for name in first if "recipe" not in name]
    assert all("--force" in made_up.done[name] for name in made_up.ran)
    figures = {name: record.rows["encoder"]["P@1"] for name, record in results_of(tmp_path).items() if "-K" in name}
    assert set(figures.values()) == {60.0}
    assert results_of(tmp_path)["study-recipe-dexa-gandalf"].rows["fused"]["P@1"] == 50.0  # was not asked for


def test_plan_prints_and_does_nothing(made_up, tmp_path):
    result = study_of(tmp_path / "docs", "D4", "--plan")
    assert result.exit_code == 0 and not made_up.ran and not (tmp_path / "docs").exists()
    assert len(result.output.splitlines()) == 12
    assert result.output.startswith("study-tokens-head-s0: -S ")


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_hold_what_the_document_uses_and_code_once(made_up, tmp_path):
    assert study_of(tmp_path, "D4", "recipes").exit_code == 0
    found = results_of(tmp_path)
    assert found["study-tokens-head-s1"].rows == {"encoder": {"P@1": 50.0}}
    assert found["study-tokens-head-s1"].code == {"stages/encoder.py": "first"}
    assert set(found["study-recipe-unidec"].rows) == {"encoder", "classifier", "concatenated"}
    assert set(found["study-recipe-unidec"].rows["encoder"]) == set(findings.FIGURES)
    text = (tmp_path / findings.RESULTS).read_text()
    lines = [line for line in text.splitlines() if line.startswith('"study-')]
    assert len(lines) == len(found) and lines == sorted(lines) and text.count("stages/encoder.py") == 1
    assert records.as_text(found) == text
    made_up.code = "second"
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 0
    assert len(json.loads((tmp_path / findings.RESULTS).read_text())["code"]) == 2  # the recipes' is the first


def test_every_claim_finds_its_rows_in_what_is_recorded(unchecked):
    needs = findings.needed(FILES)
    assert set(needs) == set(findings.make_all(FILES))
    for claim in findings.claims():
        assert all(claim.metric in needs[name_of(setting, 2)][row] for _, setting, row in claim.terms)
    assert any(", " in row for rows in needs.values() for row in rows)  # bins
    rows = {"encoder": {"P@1": 1.0, "P@5": 2.0}, "BM25": {"P@1": 3.0}}
    assert findings.only(rows, {"encoder": {"P@1"}}) == {"encoder": {"P@1": 1.0}}
    assert findings.only(rows, {"encoder": {"P@1"}, "classifier, tail": {"P@1"}}) is None
    assert findings.only(rows, {"encoder": {"C@5"}}) is None


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    file = tmp_path / findings.RESULTS
    lost = '{"code": {}, "experiments": {"a": {"code": "b", "parameters": "c", "rows": {}, "seconds": 1}}}'
    for text in ("<<<<<<< HEAD\n", "[]", "{}", lost):
        file.write_text(text)
        with pytest.raises(UserError, match=f"{findings.RESULTS} is not a record"):
            records.read(file)
    records.write(file, {})
    assert records.read(file) == {}


def test_a_fresh_clone_goes_on_from_the_records(made_up, tmp_path):
    made_up.seconds = {"study-tokens-head-s0": 500.0}
    made_up.stop_after = 4
    assert study_of(tmp_path, "D4").exit_code == 130
    text, before = (tmp_path / "study.md").read_text(), list(made_up.ran)
    made_up.done.clear()  # the experiments of the other clone
    made_up.stop_after = len(before)
    assert study_of(tmp_path, "D4").exit_code == 130
    assert (tmp_path / "study.md").read_text() == text
    made_up.stop_after = None
    assert study_of(tmp_path, "D4").exit_code == 0
    others = [name_of(name, seed) for seed in (1, 2) for name in ("softmax-head", "softmax-K4096")]
    assert made_up.ran[len(before) :] == ["study-embed", "study-softmax-K4096-s0", *others]  # tokens-head is slow


def test_experiments_of_this_clone_are_there_without_a_record(made_up, tmp_path):
    assert study_of(tmp_path, "D4").exit_code == 0
    names, before = set(results_of(tmp_path)), len(made_up.ran)
    (tmp_path / findings.RESULTS).unlink()
    assert study_of(tmp_path, "D4").exit_code == 0
    assert len(made_up.ran) == before and set(results_of(tmp_path)) == names


def test_a_record_counts_before_an_experiment_of_this_clone_unless_its_code_is_older(made_up, tmp_path):
    assert study_of(tmp_path, "D4").exit_code == 0
    made_up.figure = 60.0  # of the experiments of this clone, which are as old
    assert study_of(tmp_path, "D4").exit_code == 0
    assert results_of(tmp_path)["study-tokens-head-s0"].rows["encoder"]["P@1"] == 50.0
    made_up.code = made_up.code_of["study-tokens-head-s0"] = "second"
    assert study_of(tmp_path, "D4").exit_code == 0
    found = {name: record.rows["encoder"]["P@1"] for name, record in results_of(tmp_path).items()}
    assert found.pop("study-tokens-head-s0") == 60.0 and set(found.values()) == {50.0}


def test_a_record_of_other_parameters_is_not_used(made_up, tmp_path, monkeypatch):
    assert study_of(tmp_path, "D4", "recipes").exit_code == 0
    made_up.done.clear()
    made_up.ran.clear()
    files = FILES | {"recipes/unidec.yaml": FILES["recipes/unidec.yaml"] | {"eta": 8}}
    monkeypatch.setattr(findings, "read_files", lambda _: files)
    assert study_of(tmp_path, "D4", "recipes").exit_code == 0
    assert made_up.ran == ["study-recipe-unidec"]


def test_a_record_without_a_row_that_is_needed_is_not_used(made_up, tmp_path):
    assert study_of(tmp_path, "D4").exit_code == 0
    tree = json.loads((tmp_path / findings.RESULTS).read_text())
    del tree["experiments"]["study-tokens-head-s2"]["rows"]["encoder"]
    (tmp_path / findings.RESULTS).write_text(json.dumps(tree))
    made_up.done.clear()
    made_up.ran.clear()
    assert study_of(tmp_path, "D4").exit_code == 0
    assert made_up.ran == ["study-embed", "study-tokens-head-s2"]


def test_a_record_of_other_code_is_shown_as_older(made_up, tmp_path):
    assert study_of(tmp_path, "D4").exit_code == 0
    made_up.done.clear()
    made_up.ran.clear()
    made_up.code = "second"
    assert study_of(tmp_path, "D4").exit_code == 0
    assert not made_up.ran
    assert "12 of 12 experiments ran with older code" in (tmp_path / "study.md").read_text()
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 0
    assert len(made_up.ran) == 1 + 12


def another_clone(made_up, docs, *words: str, code: str, figure: float) -> str:
    """The records of a study in a clone that shares nothing with this one."""
    mine = made_up.done, made_up.code, made_up.figure
    made_up.done, made_up.code, made_up.figure = {}, code, figure
    assert study_of(docs, *words).exit_code == 0
    made_up.done, made_up.code, made_up.figure = mine
    return str(docs / findings.RESULTS)


def test_merge_prefers_the_present_code_and_otherwise_its_own(made_up, tmp_path):
    old = another_clone(made_up, tmp_path / "old", "D4", "recipes", code="first", figure=30.0)
    new = another_clone(made_up, tmp_path / "new", "D4", code="second", figure=40.0)
    own = tmp_path / "own"
    another_clone(made_up, own, "D4", code="first", figure=50.0)
    before, made_up.code = len(made_up.ran), "second"

    def figures() -> dict[str, float]:
        return {name: record.rows["encoder"]["P@1"] for name, record in results_of(own).items() if "-s" in name}

    assert study_of(own, "--merge", old).exit_code == 0
    assert set(figures().values()) == {50.0}  # both are older
    assert "study-recipe-unidec" in results_of(own)
    assert study_of(own, "--merge", old, "--merge", new).exit_code == 0
    assert set(figures().values()) == {40.0}
    recipes = len(findings.recipes(FILES))
    assert f"{recipes} of {recipes + 12} experiments ran" in (own / "study.md").read_text()
    assert "| 40.00 - 40.00 | 3 |" in (own / "study.md").read_text()
    assert study_of(tmp_path / "new", "--merge", str(own / findings.RESULTS)).exit_code == 0
    assert results_of(tmp_path / "new") == results_of(own)
    assert len(made_up.ran) == before


def test_shares_are_the_whole_and_do_not_overlap(unchecked):
    for parts in (1, 2, 3):
        shares = [findings.share(part, parts, FILES) for part in range(1, parts + 1)]
        assert sorted(name for one in shares for name in one) == sorted(findings.make_all(FILES))
        firsts = [sum(name.endswith("-s0") for name in one) for one in shares]
        assert max(firsts) - min(firsts) <= 1
        for one in shares:
            assert all(name_of(name, 2) in one for name in SETTINGS if name_of(name, 0) in one)


def test_two_clones_share_a_study(made_up, tmp_path):
    for part in ("1/2", "2/2"):
        another_clone(made_up, tmp_path / part[0], "D4", "recipes", "--share", part, code="first", figure=50.0)
    ran = [name for name in made_up.ran if name != "study-embed"]
    assert len(ran) == len(set(ran)) == 12 + len(findings.recipes(FILES))
    one, other = tmp_path / "1", tmp_path / "2"
    assert results_of(one) and results_of(other) and not set(results_of(one)) & set(results_of(other))
    assert study_of(one, "--merge", str(other / findings.RESULTS)).exit_code == 0
    assert set(results_of(one)) == set(ran)
    assert study_of(one, "D4", "recipes", "--plan").output == ""
    for wrong in ("0/2", "3/2", "2", "a/b", "1/"):
        assert study_of(one, "--share", wrong, "--plan").exit_code == 2
