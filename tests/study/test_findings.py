"""The study's experiments, going on where it was, and its records, with a made-up DVC."""

import json

import pytest
from click.testing import CliRunner

from longtail.recipes import flat
from study import experiments, findings, records
from study.directions import DIRECTIONS
from study.findings import make
from study.page import FIGURES, recipes
from study.sparse import SPARSE
from study.verdicts import SEEDS, claims, name_of
from tests.study.made_up import FILES, SETTINGS, UNIDEC_PARAMS
from xcutils.core.errors import UserError

RESULTS = "results.json"


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", sorted({setting.start for setting in SETTINGS.values()}))
def test_every_setting_is_valid_in_this_repository(start, files):
    for name, setting in SETTINGS.items():
        if setting.start == start:
            made = make(name, setting, files, seed=2)
            assert made.values[str(made.pipeline.params)]["seed"] == 2


def test_the_whole_study_can_be_made_in_this_repository(files):
    assert set(findings.make_all(files)) >= {*recipes(files), *(name_of(name, 0) for name in SETTINGS)}
    methods = {"dexa", "ngame", "dpr", "ance", "siamesexml", "dexml", "renee", "depsl", "unidec"}
    assert methods <= {name.removeprefix("study-recipe-") for name in recipes(files)}


def test_make_takes_the_values_of_the_file_it_starts_from(unchecked):
    made = make("a", SETTINGS["dpr"], FILES, seed=1)
    values = made.values["params.yaml"]
    assert (values["K"], values["seed"], values["prepare.refit"]) == ("recipes/dpr.yaml", 1, False)
    assert "K=recipes/dpr.yaml" in findings.arguments(made, FILES)
    assert make("a", SETTINGS["dpr"], FILES).values["params.yaml"]["seed"] == 0


def test_make_for_the_unified_pipeline_changes_both_files(unchecked):
    made = make("a", SETTINGS["unidec"], FILES, seed=1)
    assert made.values["params.yaml"] == {"dataset": "d", "prepare.refit": False}
    assert made.values[UNIDEC_PARAMS]["eta"] == 6 and "prepare.refit" not in made.values[UNIDEC_PARAMS]
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
        make("a", findings.Setting(UNIDEC_PARAMS, {"train.symetric": True}), FILES)


def test_make_checks_the_values():
    with pytest.raises(UserError):  # the made-up files have no good values
        make("a", SETTINGS["tokens-K0"], FILES)


def test_make_all_refuses_settings_that_are_the_same(unchecked):
    every = findings.make_all(FILES)
    assert len(every) == len(SETTINGS) * len(SEEDS) + len(recipes(FILES))
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
    assert list(files) == ["params.yaml", UNIDEC_PARAMS, "recipes/dexa-gandalf.yaml", "recipes/dexa.yaml"]
    assert list(recipes(files)) == ["study-recipe-dexa-gandalf", "study-recipe-dexa"]


def test_order_is_first_seeds_recipes_and_other_seeds_of_what_is_quick():
    names = findings.order(("D4", "recipes"), {}, FILES, quick=120)
    settings_of = {setting for claim in DIRECTIONS["D4"].claims for _, setting, _ in claim.terms}
    first, last = [{name_of(name, seed) for name in settings_of} for seed in (0, 2)]
    assert set(names[:4]) == first and set(names[-4:]) == last
    assert names[4 : 4 + len(recipes(FILES))] == list(recipes(FILES))
    slow = {"study-tokens-head-s0": 121.0, "study-softmax-head-s0": 119.0}
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


# --- going on ---------------------------------------------------------------------------------------------------------


def study_of(docs, *words: str):
    """The outcome of the command with its page and records in the folder `docs`."""
    return CliRunner().invoke(findings.main, [*words, "--docs", str(docs), "--results", str(docs / RESULTS)])


def results_of(docs) -> dict[str, records.Record]:
    return records.read(docs / RESULTS)


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
    made_up.failing = {name_of(name, seed) for name in SETTINGS for seed in SEEDS}
    assert study_of(tmp_path, "D4").exit_code == 1
    assert len(made_up.ran) == 1 + findings.MOST_FAILURES


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
    assert made_up.ran == list(recipes(FILES))
    assert all("--force" in words for words in made_up.done.values())
    assert made_up.done["study-recipe-unidec"][6:] == ("unidec/dvc.yaml", "-S", "unidec/params.yaml:eta=7")
    assert "| unidec | encoder | 50.00 |" in (tmp_path / "study.md").read_text()


def test_fresh_runs_again_what_ran_with_other_code(made_up, tmp_path):
    assert study_of(tmp_path, "recipes").exit_code == 0
    count = len(made_up.ran)
    made_up.code = "second"
    assert study_of(tmp_path, "recipes").exit_code == 0
    assert len(made_up.ran) == count
    assert f"{count} of {count} recorded experiments ran with older code" in (tmp_path / "study.md").read_text()
    assert study_of(tmp_path, "recipes", "--fresh").exit_code == 0
    assert made_up.ran[count:] == made_up.ran[:count]
    assert "older code" not in (tmp_path / "study.md").read_text()


def test_fresh_keeps_what_there_was_until_it_has_been_run_again(made_up, tmp_path):
    made_up.seconds = {"study-tokens-head-s0": 500.0}
    assert study_of(tmp_path, "D4", "--quick", "600").exit_code == 0
    made_up.code, made_up.stop_after = "second", len(made_up.ran) + 3
    made_up.failing = {"study-tokens-head-s0"}
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 130
    assert "11 of 12 recorded experiments ran with older code" in (tmp_path / "study.md").read_text()
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


def test_no_run_writes_the_page_alone(made_up, tmp_path):
    assert study_of(tmp_path, "D4", "--no-run").exit_code == 0
    assert not made_up.ran and "not run yet" in (tmp_path / "study.md").read_text()


# --- records ----------------------------------------------------------------------------------------------------------


def another_clone(made_up, docs, *words: str, code: str, figure: float) -> str:
    """The records of a study in a clone that shares nothing with this one."""
    mine = {name: getattr(made_up, name) for name in ("done", "code", "figure")}
    vars(made_up).update(done={}, code=code, figure=figure)
    assert study_of(docs, *words).exit_code == 0
    vars(made_up).update(mine)
    return str(docs / RESULTS)


def test_records_hold_what_the_page_uses(made_up, tmp_path):
    assert study_of(tmp_path, "D4", "recipes").exit_code == 0
    found = results_of(tmp_path)
    assert found["study-tokens-head-s1"].rows == {"encoder": {"P@1": 50.0}}
    assert found["study-tokens-head-s1"].code == "first"
    assert set(found["study-recipe-unidec"].rows) == {"encoder", "classifier", "concatenated"}
    assert set(found["study-recipe-unidec"].rows["encoder"]) == set(FIGURES)
    text = (tmp_path / RESULTS).read_text()
    lines = [line for line in text.splitlines() if line.startswith('"study-')]
    assert len(lines) == len(found) and lines == sorted(lines)
    assert records.as_text(found) == text
    made_up.code = "second"
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 0
    assert {record.code for record in results_of(tmp_path).values()} == {"first", "second"}  # the recipes' is the first


def test_every_claim_finds_its_rows_in_what_is_recorded(unchecked):
    needs = findings.needed(FILES)
    assert set(needs) == set(findings.make_all(FILES))
    for claim in claims():
        assert all(claim.metric in needs[name_of(setting, 2)][row] for _, setting, row in claim.terms)
    assert any(", " in row for rows in needs.values() for row in rows)  # bins
    rows = {"encoder": {"P@1": 1.0, "P@5": 2.0}, "BM25": {"P@1": 3.0}}
    assert findings.only(rows, {"encoder": {"P@1"}}) == {"encoder": {"P@1": 1.0}}
    assert findings.only(rows, {"encoder": {"P@1"}, "classifier, tail": {"P@1"}}) is None
    assert findings.only(rows, {"encoder": {"C@5"}}) is None


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    file = tmp_path / RESULTS
    lost = '{"a": {"code": "b", "parameters": "c", "seconds": 1}}'
    for text in ("<<<<<<< HEAD\n", "[]", lost):
        file.write_text(text)
        with pytest.raises(UserError, match=f"{RESULTS} is not a record"):
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
    (tmp_path / RESULTS).unlink()
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


def test_a_record_that_is_not_used_stays_until_it_is_replaced(made_up, tmp_path, monkeypatch):
    assert study_of(tmp_path, "recipes").exit_code == 0
    before = results_of(tmp_path)
    made_up.done.clear()
    monkeypatch.setattr(findings, "read_files", lambda _: FILES | {"recipes/unidec.yaml": FILES["unidec/params.yaml"]})
    assert study_of(tmp_path, "--no-run").exit_code == 0
    assert results_of(tmp_path) == before and "| unidec | not run yet |" in (tmp_path / "study.md").read_text()
    assert study_of(tmp_path, "recipes").exit_code == 0
    changed = [name for name, record in results_of(tmp_path).items() if record != before[name]]
    assert changed == ["study-recipe-unidec"]


def test_every_record_of_this_repository_is_of_the_present_parameters(files):
    every = findings.make_all(files)
    other = [name for name, one in records.read(findings.RESULTS).items() if one.parameters != every[name].digest]
    assert not other, "a parameter that was removed belongs into FORMER of study/experiments.py, with its last value"


def test_a_former_parameter_is_in_no_file(files):
    assert not any(set(values) & set(flat(files[file])) for file, values in experiments.FORMER.items())


def test_a_record_without_a_row_that_is_needed_is_not_used(made_up, tmp_path):
    assert study_of(tmp_path, "D4").exit_code == 0
    tree = json.loads((tmp_path / RESULTS).read_text())
    del tree["study-tokens-head-s2"]["rows"]["encoder"]
    (tmp_path / RESULTS).write_text(json.dumps(tree))
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
    assert "12 of 12 recorded experiments ran with older code" in (tmp_path / "study.md").read_text()
    assert study_of(tmp_path, "D4", "--fresh").exit_code == 0
    assert len(made_up.ran) == 1 + 12


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
    count = len(recipes(FILES))
    assert f"{count} of {count + 12} recorded experiments ran" in (own / "study.md").read_text()
    assert "| 40.00 - 40.00 | 3 |" in (own / "study.md").read_text()
    assert study_of(tmp_path / "new", "--merge", str(own / RESULTS)).exit_code == 0
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
    assert len(ran) == len(set(ran)) == 12 + len(recipes(FILES))
    one, other = tmp_path / "1", tmp_path / "2"
    assert results_of(one) and results_of(other) and not set(results_of(one)) & set(results_of(other))
    assert study_of(one, "--merge", str(other / RESULTS)).exit_code == 0
    assert set(results_of(one)) == set(ran)
    assert study_of(one, "D4", "recipes", "--plan").output == ""
    for wrong in ("0/2", "3/2", "2", "a/b", "1/"):
        assert study_of(one, "--share", wrong, "--plan").exit_code == 2
