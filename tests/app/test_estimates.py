import json
import re
from dataclasses import replace

import pytest
import torch

from longtail import estimates, sizes
from longtail.cli import ROWS, main
from longtail.estimates import STAGES, UNIFIED, Estimate, Host, Network, Part, Sizes
from testing.tiny import (
    DATASET,
    PIPELINES,
    ROOT,
    invoke,
    make_params,
    make_project,
    run_stage,
    run_stages,
    small_checkpoint,
    write_params,
)
from xcutils.core.errors import UserError
from xcutils.core.params import load_all
from xcutils.data.summaries import PUBLISHED

HOST = Host(threads=2, speed=1e11)
SIZES = Sizes(
    docs=1000,
    labels=5000,
    positives=3000,
    validation=100,
    test=200,
    doc_tokens=9000,
    label_tokens=20_000,
    test_tokens=1800,
)


@pytest.fixture
def project(tmp_path, tiny_model, monkeypatch):
    """A folder with the tiny dataset and a checkpoint of 16 dimensions, in which nothing has run."""
    make_project(tmp_path, **small_checkpoint(tiny_model))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without(run, folder, stage: str, model):
    """`folder`, with all that `run` made but the stage's own output."""
    (folder / "data").mkdir()
    for name in STAGES:
        if name != stage:
            (folder / "data" / name).symlink_to(run / "data" / name)
    write_params(folder, make_params(**small_checkpoint(model)))
    return folder


def part(estimate: Estimate, name: str) -> Part:
    return next(p for p in estimate.parts if p.name == name)


def test_the_peak_is_the_fullest_moment_and_needs_less_than_the_peak_when_files_are_mapped():
    kept, moments = [Part("base", 10)], [[Part("a", 5), Part("b", 5)], [Part("c", 9)], []]
    made = Estimate("x", estimates._fullest(kept, moments), 1, 0)
    assert [p.name for p in made.parts] == ["base", "a", "b"] and made.peak == made.needed == 20
    assert replace(made, parts=[*made.parts, Part("file", 100, mapped=True)]).needed == 20


def test_the_line_names_the_largest_parts():
    made = Estimate("encoder", [Part("base", 0.2e9), Part("bank", 1e9), Part("x", 1e6), Part("step", 0.5e9)], 40, 0)
    assert made.line() == "encoder: about 1.70 GB and 40 s (bank 1.00 GB, step 0.50 GB, base 0.20 GB)"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (119, "119 s"), (150, "2 min"), (7200, "2 h"), (1e8, "27,778 h")]
)
def test_durations(seconds, said):
    assert estimates.duration(seconds) == said


def test_a_refusal_is_one_sentence_that_names_the_largest_parameter_and_the_sizes():
    parts = [Part("base", 3e9), Part("bank", 4e9, "lower A (4)"), Part("scores", 2e9, "lower B (2)")]
    made = Estimate("encoder", [*parts, Part("file", 50e9, mapped=True)], 1, 0)
    assert made.refusal(9e9) == ""
    said = made.refusal(8e9)
    assert said.startswith("encoder needs about 9.00 GB of memory and 8.00 GB can be had here: lower A (4), ")
    assert "4.00 GB" in said and "even without" not in said and said.endswith(".") and "\n" not in said
    assert "even without them 5.00 GB are needed" in made.refusal(4e9)
    assert "fewer documents or labels" in replace(made, parts=parts[:1]).refusal(1e9)


def test_an_encoder_by_hand():
    bag = Network("bag-of-embeddings", dim=16, rows=80, width=16, dense=80, ngrams=2)
    assert bag.weights == 4 * (80 * 16 + 80)
    assert bag.features(texts=10, tokens=50) == 50 + 40
    assert bag.used(10, 50) == pytest.approx(90**0.86) and bag.used(1000, 5000) == 80
    rows = 90**0.86 * 16 * 4
    assert bag.step(10, 50) == pytest.approx(2 * (6 * 4 * 10 * 16 + 7 * rows) + 7 * 8 * 90)
    assert bag.forward(10, 50, threads=2) == pytest.approx(2 * rows + 7 * 8 * 90 + 2 * 4 * 10 * 16)  # one chunk
    assert bag.forward(40_960, 50 * 4096, threads=2) > 2 * bag.forward(2048, 25 * 409, threads=2)


def test_encoders_come_from_config_json_alone(project, tiny_model):
    params = load_all()
    bag = estimates.trained(params)
    assert (bag.kind, bag.dim, bag.rows) == ("bag-of-embeddings", 16, 16 + 64)
    gru = estimates.trained(load_all(["encoder.kind=bi-gru"]))
    assert (gru.dim, gru.rows, gru.width) == (2 * 8, 16, 16)
    torch_gru = 2 * 3 * 8 * (16 + 8 + 2)
    assert gru.dense == torch_gru and "encoder.hidden (8)" in estimates._fewer(gru)
    net = estimates.trained(load_all(["encoder.kind=transformer", "encoder.layers=3"]))
    from xcutils.model.encoders import build_transformer

    built = build_transformer(str(tiny_model), {"cls": 2, "sep": 3}, pooling="mean", layers=3, dropout=0.0)
    real = sum(p.numel() for name, p in built.named_parameters() if "pooler" not in name) * 4
    assert net.layers == 3 and net.weights == pytest.approx(real, rel=0.02)
    (tiny_model / "config.json").rename(tiny_model / "away.json")
    try:
        with pytest.raises(UserError, match=r"config\.json"):
            estimates.trained(params)
    finally:
        (tiny_model / "away.json").rename(tiny_model / "config.json")


def test_classifiers_by_hand(project):
    params = load_all(["classifier.batch_size=10", "classifier.encoder_lr=0", "classifier.labels=all"])
    made = estimates.classifier(replace(SIZES, validation=1), params, HOST)
    table = 4 * 5000 * 16
    assert part(made, "classifiers, moments and best epoch").bytes == 4 * table
    assert part(made, "bank of documents").bytes == 4 * 1000 * 16
    assert part(made, "documents and labels to start from") == Part(
        "documents and labels to start from", 4 * 6000 * 16, mapped=True
    )
    assert part(made, "scores").bytes == 2 * 4 * 10 * 5000
    assert part(made, "step's labels").bytes == 2 * 6 * table
    assert "classifier.labels" in part(made, "step's labels").remedy
    assert made.disk == 2 * (table + 4 * 1000 * 16 + 4 * 80 * 17)
    assert estimates.classifier(replace(SIZES, refit=False), params, HOST).disk == made.disk / 2


def test_the_batch_s_labels_alone_make_a_step_free_of_the_number_of_labels(project):
    params = load_all(["classifier.labels=batch", "classifier.encoder_lr=0", "classifier.cluster_from=100"])
    pools = [estimates._distinct(48, n) for n in (5000, 5_000_000)]
    assert pools[0] < pools[1] <= 48
    made = estimates.classifier(SIZES, params, HOST)
    assert "unit classifiers" in {p.name for p in made.parts}  # validation is now the fullest moment


def test_the_graphs_by_hand(project):
    made = estimates.index(SIZES, load_all(["index.m=8"]), HOST)
    assert part(made, "vectors in the graphs").bytes == part(made, "vectors").bytes == 4 * 11_000 * 16
    assert part(made, "links").bytes == pytest.approx(11_000 * (8 + 4 * 17 + 72 / 7 + 40 + 48 + 8 + 4 + 2))
    assert estimates.index(SIZES, load_all(["index.search=exact"]), HOST).peak == estimates.BASE


def test_label_texts_by_hand(project):
    base = estimates.gandalf(SIZES, load_all(), HOST)
    assert {p.name for p in base.parts} == {"interpreter", "positives", "positives of a fit"}
    assert base.disk == 2 * 4 * 1000
    dense = replace(SIZES, positives=100_000)  # 100 labels of a document, 20 documents of a label
    made = estimates.gandalf(dense, load_all(["gandalf.labels=0.5", "gandalf.delta=0.1"]), HOST)
    targets = 1 + 5 * 99
    assert part(made, "positives by document and by label").bytes == 16 * 100_000 + 8 * 6000
    assert part(made, "targets, twice").bytes == 16 * 5000 * targets
    assert part(made, "counts").bytes == 30 * estimates.PAIRS  # 20 million pairs meet
    assert made.disk == 2 * (4 * 1000 + 12 * 2500 + 8 * 2500 * targets)
    every = estimates.gandalf(dense, load_all(["gandalf.labels=1", "gandalf.delta=0"]), HOST)
    assert part(every, "targets, twice").bytes == 16 * 5000 * (1 + 20 * 99)
    walk = estimates.gandalf(dense, load_all(["gandalf.labels=1", "gandalf.targets=random-walk"]), HOST)
    assert part(walk, "targets, twice").bytes == 16 * 5000 * 11 and part(walk, "walks").bytes == 65 * 5000 * 400
    own = estimates.gandalf(dense, load_all(["gandalf.labels=1", "gandalf.targets=self"]), HOST)
    assert part(own, "positives of a fit").bytes == 24 * 100_000  # the targets are less than that


def test_label_texts_are_points_of_the_classifier(project):
    def made(*changes: str) -> Estimate:
        given = ["gandalf.targets=self", "classifier.encoder_lr=0", "classifier.epochs=1", "classifier.cluster_from=9"]
        return estimates.classifier(SIZES, load_all([*given, *changes]), HOST)

    name = "label texts and their targets"
    without_texts, with_texts = made(), made("gandalf.labels=0.2")
    assert name not in {p.name for p in without_texts.parts}
    held = 4 * 1000 * 16 + 4 * (9000 + 4000) + 8 * (3000 + 1000) + 16 * 2000
    assert part(with_texts, name).bytes == held and "gandalf.labels (0.2)" in part(with_texts, name).remedy
    assert with_texts.peak - without_texts.peak == pytest.approx(held + 4 * 1000 * 16)  # and as much is read from files
    assert with_texts.disk == without_texts.disk
    same_size = made("gandalf.labels=0.2", "gandalf.same_size=true")
    assert part(same_size, name).bytes < held
    assert (
        without_texts.seconds == pytest.approx(same_size.seconds, rel=1e-3) and with_texts.seconds > same_size.seconds
    )


def test_scores_by_hand(project):
    made = estimates.score(SIZES, load_all(), HOST)
    assert part(made, "rankings").bytes == 8 * len(ROWS) * 100 * 200
    many = replace(SIZES, label_tokens=10**9)
    assert part(estimates.score(many, load_all(), HOST), "words that documents and labels share").bytes == 45e9


def test_the_unified_method_has_no_row_of_shared_words(project):
    params = load_all(file=ROOT / "unidec" / "params.yaml")
    few, many = (UNIFIED["score"](replace(SIZES, label_tokens=n), params, HOST) for n in (10**3, 10**9))
    assert few.parts == many.parts and few.seconds == many.seconds
    assert UNIFIED["gandalf"](SIZES, params, HOST) == STAGES["gandalf"](SIZES, load_all(), HOST)


def test_auxiliary_vectors_grow_with_k_up_to_the_labels(project):
    def peak(k: int) -> float:
        return estimates.encoder(SIZES, load_all([f"K={k}", "encoder.batch_size=1000"]), HOST).peak

    assert peak(0) < peak(100) < peak(5000) == peak(10**9)
    assert peak(100) - peak(0) == pytest.approx(4 * 4 * 100 * 16)


def test_every_stage_of_the_pipeline_has_an_estimate():
    assert list(STAGES) == list(PIPELINES[""]["stages"])


@pytest.mark.parametrize("stage", STAGES)
def test_more_data_takes_more(project, stage):
    params = load_all()
    small, large = (
        STAGES[stage](sizes.scaled(SIZES, params, docs=1000 * n, labels=5000 * n, test=200 * n), params, HOST)
        for n in (1, 1000)
    )
    assert large.peak > small.peak > 0 and large.seconds > small.seconds > 0 and large.disk >= small.disk > 0
    assert large.needed <= large.peak


@pytest.mark.parametrize(
    ("stage", "changes", "named"),
    [
        ("classifier", ["classifier.loss=triplet", "classifier.batch_size=100000"], "classifier.batch_size (100000)"),
        ("encoder", ["encoder.labels=all"], "encoder.labels to batch"),
        ("classifier", ["classifier.labels=batch"], "encoder.model"),
        ("encoder", ["encoder.kind=bi-gru", "encoder.hidden=4000"], "encoder.hidden (4000)"),
        ("encoder", ["encoder.buckets=500000000"], "encoder.buckets (500000000)"),
        ("encoder", ["K=1000000000", "encoder.ngrams=1"], "lower K"),
        ("gandalf", ["gandalf.labels=1", "gandalf.delta=0.01"], "raise gandalf.delta (0.01)"),
        ("gandalf", ["gandalf.labels=1", "gandalf.targets=random-walk", "gandalf.walk=9000"], "gandalf.walk (9000)"),
        ("index", ["index.m=1000"], "index.m (1000)"),
        ("score", ["score.shortlist=100000", "index.search=exact"], "score.shortlist (100000)"),
    ],
)
def test_a_stage_that_cannot_fit_names_what_scales_it(project, stage, changes, named):
    params = load_all(changes)
    big = sizes.like("LF-AmazonTitles-1.3M", PUBLISHED, params)
    big = sizes.scaled(big, params, docs=200_000) if stage == "encoder" else big
    made = STAGES[stage](big, params, HOST)
    assert named in made.refusal(made.needed / 2)


# --- sizes


def test_sizes_of_a_folder_and_of_what_is_prepared_from_it_agree(project):
    params = load_all()
    raw = sizes.raw(project / DATASET, params)
    run_stages(project, ["prepare"])
    folder = project / "data" / "prepare"
    made = estimates.prepared(folder / "train", folder / "labels", folder / "test")
    assert replace(made, validation=0, filtered=0) == replace(raw, validation=0)
    assert made.validation and made.filtered
    assert estimates.prepared(folder / "train", 40) == replace(made, label_tokens=0, test=0, test_tokens=0)


def test_lines_beyond_the_sample_are_counted(project, monkeypatch):
    whole = sizes.raw(project / DATASET, load_all())
    monkeypatch.setattr(sizes, "SAMPLE", 7)
    some = sizes.raw(project / DATASET, load_all())
    assert (some.docs, some.labels, some.test) == (whole.docs, whole.labels, whole.test)
    assert some.positives == pytest.approx(whole.positives, rel=0.5)


def test_a_damaged_folder_is_refused(project):
    (project / DATASET / "lbl.json.gz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"lbl\.json\.gz"):
        sizes.raw(project / DATASET, load_all())


def test_published_sizes(project):
    made = sizes.like("LF-AmazonTitles-131K", PUBLISHED, load_all())
    assert (made.docs, made.labels, made.test) == (294_805, 131_073, 134_835)
    assert made.positives == round(294_805 * 2.29) and made.doc_tokens == 13 * 294_805
    big = sizes.like("40M", PUBLISHED, load_all())
    assert big.labels == 40_000_000 and big.positives / big.docs == pytest.approx(22.2)
    long = sizes.like("LF-Wikipedia-500K", PUBLISHED, load_all(["prepare.max_tokens=66"]))
    assert long.doc_tokens == 64 * long.docs


def test_a_number_that_is_given_scales_what_goes_with_it(project):
    params = load_all()
    made = sizes.scaled(SIZES, params, docs=2000, labels=500)
    assert (made.docs, made.doc_tokens, made.positives) == (2000, 18_000, 6000)
    assert (made.labels, made.label_tokens, made.test_tokens) == (500, 2000, 1800)
    assert sizes.scaled(SIZES, params, positives=7, tokens=2.5, test=10).test_tokens == 25
    assert sizes.scaled(SIZES, params).validation == 250  # prepare.validation of the tiny project


# --- stages and `xc estimate`


@pytest.mark.stage
def test_every_long_stage_says_what_it_will_take_before_it_starts(tiny_run, tmp_path, tiny_model):
    folder = make_project(tmp_path, **small_checkpoint(tiny_model))
    said = run_stages(folder)
    for stage in list(STAGES)[1:]:
        first = said[stage].splitlines()[0]
        assert re.fullmatch(rf"{stage}: about 0\.\d\d GB and \d+ s \(.+ \d\.\d\d GB, .+\)", first), first


@pytest.mark.stage
@pytest.mark.parametrize("stage", list(STAGES)[1:])
def test_a_stage_refuses_what_cannot_fit_and_writes_nothing(tiny_run, tmp_path, tiny_model, monkeypatch, stage):
    without(tiny_run, tmp_path, stage, tiny_model)
    monkeypatch.setenv("XC_MEMORY", "0.001")
    result = run_stage(tmp_path, stage)
    assert result.exit_code == 1 and result.stderr.startswith(f"error: {stage} needs about 0.")
    assert result.stderr.count("\n") == 1 and "0.00 GB can be had here" in result.stderr
    assert not (tmp_path / "data" / stage).exists()


@pytest.mark.parametrize("stage", estimates.ON_DEVICE)
def test_on_another_device_a_stage_is_told_its_estimate_of_the_cpu_and_not_refused(project, monkeypatch, capsys, stage):
    file = ROOT / "unidec" / "params.yaml" if stage == "train" else project / "params.yaml"
    monkeypatch.setenv("XC_MEMORY", "0.001")
    with pytest.raises(UserError, match=f"{stage} needs about"):
        estimates.announce(stage, SIZES, file)
    monkeypatch.setattr("xcutils.core.runtime.device", lambda: torch.device("cuda"))
    estimates.announce(stage, SIZES, file)
    said = capsys.readouterr().err
    assert said.startswith(f"{stage}: about ") and said.count("\n") == 1
    assert said.endswith("); that is of a run on the CPU, and this one is on cuda\n")


@pytest.mark.parametrize("stage", ["gandalf", "cluster", "index"])
def test_a_stage_that_always_works_on_the_cpu_is_refused_beside_another_device_too(project, monkeypatch, stage):
    assert "device" not in (ROOT / "stages" / f"{stage}.py").read_text(encoding="utf-8")
    monkeypatch.setenv("XC_MEMORY", "0.001")
    monkeypatch.setattr("xcutils.core.runtime.device", lambda: torch.device("cuda"))
    with pytest.raises(UserError, match=f"{stage} needs about"):
        estimates.announce(stage, SIZES)


def estimated(folder, *args) -> str:
    result = invoke(folder, main, ["estimate", *args])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_xc_estimate_prints_every_stage_of_the_dataset_in_params_yaml(project):
    lines = estimated(project).splitlines()
    assert "N = 60 documents, L = 40 labels" in lines[0] and "D = 16" in lines[0]
    assert [line.split()[0] for line in lines[2 : 2 + len(STAGES)]] == list(STAGES)
    assert lines[-1].startswith("All stages fit into the ")


def test_xc_estimate_takes_prepared_data_where_there_is_some(tiny_run):
    assert estimated(tiny_run).startswith("data/prepare: N = 60 documents")
    assert estimated(tiny_run, tiny_run / DATASET).startswith(f"{tiny_run / DATASET}: N = 60 documents")


@pytest.mark.stage
def test_xc_estimate_says_what_a_stage_says(tiny_run, tmp_path, tiny_model):
    said = run_stage(without(tiny_run, tmp_path, "index", tiny_model), "index").stderr.splitlines()[0]
    row = next(line for line in estimated(tiny_run).splitlines() if line.startswith("index"))
    assert re.search(r"about (\S+ GB)", said)[1] in row and said.partition("(")[2].rstrip(")") in row


@pytest.mark.parametrize("name", ["LF-AmazonTitles-131K", "LF-AmazonTitles-1.3M", "40M"])
def test_xc_estimate_of_published_sizes(project, monkeypatch, name):
    monkeypatch.setenv("XC_MEMORY", "8")
    said = estimated(project, "--like", name, "-S", "classifier.labels=batch", "-S", "K=65536")
    assert said.startswith(f"{name}: N = ")
    assert ("does not fit" in said) == (name != "LF-AmazonTitles-131K")


def test_xc_estimate_sets_parameters_and_sizes(project):
    few, many = (estimated(project, "-S", f"classifier.epochs={n}", "--docs", "9000000") for n in (1, 50))
    assert few != many and "N = 9,000,000" in few
    assert "L = 7 labels, 11 positives" in estimated(project, "--labels", "7", "--positives", "11")


def test_xc_estimate_says_that_it_is_of_the_cpu_where_another_device_is_used(project, monkeypatch):
    monkeypatch.setattr("xcutils.core.runtime.device", lambda: torch.device("cuda"))
    assert estimated(project).splitlines()[-1].startswith("All this is of a run on the CPU; on cuda a stage")


def test_xc_estimate_of_the_second_pipeline(project):
    lines = estimated(project, "--unidec").splitlines()
    assert "N = 60 documents, L = 40 labels" in lines[0]
    assert [line.split()[0] for line in lines[2 : 2 + len(UNIFIED)]] == list(UNIFIED)
    assert lines[2 + len(UNIFIED)].startswith("in all") and lines[-1].startswith("All stages fit into the ")


def test_parameters_of_the_second_pipeline_are_set_as_dvc_exp_run_does(project):
    def rows(*changes: str) -> list[str]:
        given = [word for change in changes for word in ("-S", change)]
        lines = estimated(project, "--unidec", "--docs", "9000000", *given).splitlines()
        return [line[:51] for line in lines[2 : 2 + len(UNIFIED)]]  # without the largest parts

    usual = rows()
    wide, one_fit = rows("unidec/params.yaml:train.dim=4000"), rows("prepare.refit=false", "params.yaml:seed=3")
    train = list(UNIFIED).index("train")
    assert wide[train] != usual[train] != one_fit[train]
    assert "D = 16" in estimated(project, "--unidec", "-S", "unidec/params.yaml:train.dim=8")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (
            ["-S", "unidec/params.yaml:beta=1"],
            "-S unidec/params.yaml:beta=1 is a parameter of the second pipeline: add",
        ),
        (["--unidec", "-S", "beta=1"], "params.yaml.beta is not a parameter"),
        (["--unidec", "-S", "unidec/params.yaml:beta=0"], "unidec/params.yaml.beta is 0"),
        (["--unidec", "-S", "other.yaml:beta=1"], "other.yaml is no parameter file; known: params.yaml, unidec/params"),
        (["-S", "encoder.epoch=3"], "encoder.epoch is not a parameter"),
        (["-S", "classifier.epochs=0"], "classifier.epochs is 0"),
        (["-S", "K"], "-S K is not a change"),
        (["-S", "a.b.c=1"], "-S a.b.c=1 is not a change"),
        (["-S", "K.x=1"], "K is no section"),
        (["-S", "nothing.x=1"], "no stage 'nothing'"),
        (["-S", "K=[1"], "not valid YAML"),
        (["--like", "Amazon"], "LF-AmazonTitles-131K"),
        (["--like", "40M", "."], "not both"),
        (["nowhere"], "There is no dataset nowhere"),
    ],
)
def test_xc_estimate_refuses_what_it_does_not_know(project, args, named):
    result = invoke(project, main, ["estimate", *args])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ") and named in result.stderr


def test_the_checkpoint_s_config_is_read_by_other_names_too(project, tiny_model, tmp_path):
    folder = tmp_path / "distil"
    folder.mkdir()
    names = {"vocab_size": 50, "dim": 12, "hidden_dim": 24, "n_layers": 2}
    (folder / "config.json").write_text(json.dumps(names))
    net = estimates.embedder(load_all([f"embed.model={folder}"]))
    assert (net.dim, net.inner, net.layers, net.rows) == (12, 24, 2, 50)
