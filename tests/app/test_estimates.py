import ast
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longtail import estimates, sizes
from longtail.cli import main
from stages import encoder as encoder_stage
from stages import parameters
from testing.tiny import (
    DATASET,
    DVC_FILES,
    EVERY,
    ROOT,
    STAGES,
    branch,
    home,
    invoke,
    make_project,
    module,
    run_stage,
    run_stages,
    small_checkpoint,
)
from xcutils.core import costs, runtime
from xcutils.core.costs import INTERPRETER, Estimate, Host, Part, Sizes
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, UNIDEC
from xcutils.core.rules import settled
from xcutils.data.summaries import PUBLISHED
from xcutils.model import encoders
from xcutils.model.bag import BagNetwork
from xcutils.model.gru import GRUNetwork
from xcutils.model.packed import TOKENS
from xcutils.model.transformer import TransformerNetwork, build_transformer
from xcutils.search.searcher import INDEXES
from xcutils.train.correlations import PAIRS
from xcutils.train.losses import LOSSES

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
# Every stage by its name in dvc.yaml, `unidec/train`; `prepare` knows no sizes before it has read the data.
ANNOUNCED = [stage for stage in EVERY if stage != "prepare"]
ON_DEVICE = ["embed", "cluster", "encoder", "augment", "classifier", "index", "score"]
ON_DEVICE += ["unidec/embed", "unidec/train", "unidec/index", "unidec/score"]


@pytest.fixture(autouse=True)
def quick_look(monkeypatch) -> None:
    """The machine's speed by one small product: the usual look takes 0.1 s."""
    speed = runtime.strength
    monkeypatch.setattr(runtime, "strength", lambda: speed(size=64, seconds=0.0))


@pytest.fixture(scope="module")
def untouched(tiny_model, tmp_path_factory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), **small_checkpoint(tiny_model))


@pytest.fixture
def project(untouched, monkeypatch) -> Path:
    """A folder with the tiny dataset and a checkpoint of 16 dimensions, in which nothing has run; not to be written."""
    monkeypatch.chdir(untouched)
    return untouched


@pytest.fixture
def own_project(untouched, tmp_path, monkeypatch) -> Path:
    """A copy of it."""
    monkeypatch.chdir(shutil.copytree(untouched, tmp_path / "project"))
    return tmp_path / "project"


def pipeline_of(stage: str):
    return UNIDEC if stage.startswith("unidec/") else MODULAR


def values(*changes: str, pipeline=MODULAR) -> dict:
    """The parameters of the project, with changes."""
    return parameters(pipeline.params, changes).values


def cost(stage: str, *changes: str, s: Sizes = SIZES) -> Estimate:
    """What the stage takes with these changes of its own pipeline's parameters."""
    pipeline = pipeline_of(stage)
    params = values(*changes, pipeline=pipeline)
    first = params if pipeline is MODULAR else values()
    return module(stage).cost(estimates.with_dims(s, pipeline, params, first), settled(params, s), HOST)


def part(estimate: Estimate, name: str) -> Part:
    return next(p for p in estimate.parts if p.name == name)


# --- an estimate ------------------------------------------------------------------------------------------------------


def test_the_peak_is_the_fullest_moment_and_needs_less_than_the_peak_when_files_are_mapped():
    kept, moments = [Part("base", 10)], [[Part("a", 5), Part("b", 5)], [Part("c", 9)], []]
    made = Estimate("x", costs.fullest(kept, moments), 1, 0)
    assert [p.name for p in made.parts] == ["base", "a", "b"] and made.peak == made.needed == 20
    assert replace(made, parts=[*made.parts, Part("file", 100, mapped=True)]).needed == 20


def test_the_line_names_the_largest_parts():
    made = Estimate("encoder", [Part("base", 0.2e9), Part("bank", 1e9), Part("x", 1e6), Part("step", 0.5e9)], 40, 0)
    assert made.line() == "encoder: about 1.70 GB and 40 s (bank 1.00 GB, step 0.50 GB, base 0.20 GB)"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (119, "119 s"), (150, "2 min"), (7200, "2 h"), (1e8, "27,778 h")]
)
def test_durations(seconds, said):
    assert costs.duration(seconds) == said


def test_a_refusal_is_one_sentence_that_names_the_largest_parameter_and_the_sizes():
    parts = [Part("base", 3e9), Part("bank", 4e9, "lower A (4)"), Part("scores", 2e9, "lower B (2)")]
    made = Estimate("encoder", [*parts, Part("file", 50e9, mapped=True)], 1, 0)
    assert made.refusal(9e9) == ""
    said = made.refusal(8e9)
    assert said.startswith("encoder needs about 9.00 GB of memory and 8.00 GB are available here: lower A (4), ")
    assert "4.00 GB" in said and "even without" not in said and said.endswith(".") and "\n" not in said
    assert "even without them 5.00 GB are needed" in made.refusal(4e9)
    assert "fewer documents or labels" in replace(made, parts=parts[:1]).refusal(1e9)


# --- encoders, losses and indexes state their own ---------------------------------------------------------------------


def test_a_bag_of_embeddings_by_hand():
    bag = BagNetwork(16, rows=80, width=16, dense=80, ngrams=2)
    assert bag.weights == 4 * (80 * 16 + 80)
    assert bag.features(texts=10, tokens=50) == 50 + 40 and bag.prepared(10, 50) == 4 * 90 + 8 * 10
    assert bag.used(10, 50) == pytest.approx(90**0.86) and bag.used(1000, 5000) == 80
    rows = 90**0.86 * 16 * 4
    assert bag.step(10, 50) == pytest.approx(2 * (6 * 4 * 10 * 16 + 7 * rows) + 7 * 8 * 90)
    one = bag.forward(10, 50, threads=2, chunk=4096)
    assert one == pytest.approx(2 * rows + 7 * 8 * 90 + 2 * 4 * 10 * 16)
    assert bag.forward(40_960, 50 * 4096, threads=2, chunk=4096) > 2 * bag.forward(
        2048, 25 * 409, threads=2, chunk=4096
    )


def test_other_encoders_by_hand():
    gru = GRUNetwork(8, rows=50, width=16, dense=1000)
    assert gru.weights == 4 * (50 * 16 + 1000) and gru.prepared(10, 50) == 0  # it reads the tokens themselves
    rows = 4 * 16 * 50**0.78
    assert gru.step(10, 50) == pytest.approx(2 * (6 * 4 * 10 * 8 + 6 * rows + 4 * 50 * (2 * 16 + 8 * 8)) + 4 * 1000)
    assert gru.work(10, 50, train=True) == pytest.approx((12 * 1000 * 50, 30 * rows))
    net = TransformerNetwork(16, rows=50, width=16, dense=1000, layers=2, inner=32)
    activations = 4 * 2 * (50 + 20) * (10 * 16 + 2 * 32)
    assert net.step(10, 50) == pytest.approx(2 * (6 * 4 * 10 * 16 + activations) + net.weights)
    layer = TOKENS * (6 * 16 + 2 * 32)
    assert net.chunk(10, 50) == pytest.approx(2 * 4 * (3 * 70 * 16 + 2 * layer))
    assert net.work(10, 50, train=False) == pytest.approx((2.2 * 1000 * 70, 0))


def test_encoders_come_from_config_json_alone(project, tiny_model):
    network, params = encoder_stage.network, values()
    bag = network(params)
    assert isinstance(bag, BagNetwork) and (bag.dim, bag.rows) == (16, 16 + 64)
    gru = network(values("encoder.kind=bi-gru"))
    assert isinstance(gru, GRUNetwork) and (gru.dim, gru.rows, gru.width) == (2 * 8, 16, 16)
    torch_gru = 2 * 3 * 8 * (16 + 8 + 2)
    assert gru.dense == torch_gru and "encoder.hidden (8)" in gru.fewer
    net = network(values("encoder.kind=transformer", "encoder.layers=3"))
    built = build_transformer(str(tiny_model), {"cls": 2, "sep": 3}, pooling="mean", layers=3, dropout=0.0)
    real = sum(p.numel() for name, p in built.named_parameters() if "pooler" not in name) * 4
    assert isinstance(net, TransformerNetwork) and net.layers == 3 and net.weights == pytest.approx(real, rel=0.02)
    (tiny_model / "config.json").rename(tiny_model / "away.json")
    try:
        with pytest.raises(UserError, match=r"config\.json"):
            network(params)
    finally:
        (tiny_model / "away.json").rename(tiny_model / "config.json")


@pytest.mark.parametrize("kind", encoders.KINDS)
def test_every_kind_of_encoder_states_its_own(project, kind):
    net = encoder_stage.network(values(f"encoder.kind={kind}"))
    assert net.step(100, 900) > net.step(10, 90) > 0 and net.forward(10, 90, 1, 4096) > 0
    assert sum(net.work(10, 90, train=True)) > sum(net.work(10, 90, train=False)) > 0
    assert (
        net.weights > 0
        and (net.imports > 0) == (kind == "transformer")
        and "encoder." in net.fewer
        and "encoder." in net.smaller
    )


def test_the_checkpoint_s_config_is_read_by_other_names_too(project, tmp_path):
    folder = tmp_path / "distil"
    folder.mkdir()
    names = {"vocab_size": 50, "dim": 12, "hidden_dim": 24, "n_layers": 2}
    (folder / "config.json").write_text(json.dumps(names))
    net = module("embed").network(values(f"embed.model={folder}"))
    assert (net.dim, net.inner, net.layers, net.rows) == (12, 24, 2, 50)


def test_heads_and_a_pretrained_encoder_beside_make_the_unified_models_dimensions(project):
    def dim(*changes: str) -> int:
        return module("unidec/train").network(values(*changes, pipeline=UNIDEC)).dim

    assert dim() == 2 * 16 and dim("train.classifier_loss=none") == 16 and dim("train.dim=5") == 10
    assert dim("train.pretrained=0.5") == 2 * (16 + 16)


@pytest.mark.parametrize("name", LOSSES)
def test_scores_of_a_step_are_held_in_chunks_unless_the_hardest_are_looked_for(name):
    few, many = LOSSES[name].step_bytes(100, 1000), LOSSES[name].step_bytes(1000, 10**8)
    if LOSSES[name].negatives == "all":
        assert few == 2 * 4 * 100 * 1000 and many == 2 * 4 * (1 << 24)
    else:
        assert few == 2 * 5 * 4 * 100 * 1000 and many == 2 * 5 * 4 * 1000 * 10**8


@pytest.mark.parametrize("name", INDEXES)
def test_every_index_states_its_own(name):
    kind = INDEXES[name]
    if kind.exhaustive:
        assert all(p.mapped for p in kind.cost(1000, 16, 8)) and kind.building_cost([1000], 16) == []
        assert kind.disk(1000, 16, 8) == 2 * 1000 * 16
        return
    small, large = (sum(p.bytes for p in kind.cost(n, 16, 8)) for n in (1000, 10_000))
    assert large == pytest.approx(10 * small) and small >= 2 * 1000 * 16
    assert kind.disk(1000, 16, 8) >= 2 * 1000 * 16 and sum(p.bytes for p in kind.building_cost([1000], 16)) > 0
    assert kind.seconds(200, 8, 10**6, 384) > kind.seconds(20, 8, 10**6, 384) > 0


# --- every stage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [MODULAR, UNIDEC], ids=lambda pipeline: pipeline.folder or "modular")
def test_every_stage_of_both_pipelines_states_its_cost(project, pipeline):
    folder = f"{pipeline.folder}/".lstrip("/")
    assert list(pipeline.stages) == list(DVC_FILES[folder]["stages"])
    params, first = values(pipeline=pipeline), values()
    s = estimates.with_dims(SIZES, pipeline, params, first)
    made = estimates.estimates(s, pipeline, params, HOST)
    assert [one.stage for one in made] == list(pipeline.stages)
    assert made == [cost(folder + stage) for stage in pipeline.stages]
    assert estimates.stage_module(pipeline, pipeline.trains).network(params).dim == s.dim > 0


@pytest.mark.parametrize("stage", EVERY)
def test_the_parts_are_at_least_the_interpreter(project, stage):
    for s in (Sizes(docs=1, labels=1), SIZES):
        made = cost(stage, s=s)
        assert made.parts[0].name == "interpreter" and made.parts[0].bytes >= INTERPRETER
        assert made.peak == sum(p.bytes for p in made.parts) >= made.needed >= INTERPRETER
        assert all(p.bytes >= 0 for p in made.parts) and made.seconds > 0 and made.disk >= 0


@pytest.mark.parametrize("stage", EVERY)
def test_more_data_takes_more(project, stage):
    params = values()
    small, large = (
        cost(stage, s=sizes.scaled(SIZES, params, docs=1000 * n, labels=5000 * n, test=200 * n)) for n in (1, 1000)
    )
    assert large.peak > small.peak > 0 and large.seconds > small.seconds > 0 and large.disk >= small.disk > 0
    assert large.needed <= large.peak


def numbers(tree: ast.AST) -> set[float]:
    """The number literals of some code, but for whole ones of a single digit, which mean many things."""
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {float(n) for n in found if type(n) in (int, float) and not (n == int(n) and abs(n) < 10)}


def assigned(tree: ast.Module) -> set[str]:
    """The names that stand on the left of an = at the top of a module."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def test_no_number_of_the_shared_figures_is_repeated_elsewhere():
    shared = ast.parse(Path(costs.__file__).read_text(encoding="utf-8"))
    assert assigned(shared) >= {"FLOAT", "INTERPRETER", "FRAGMENTATION", "BANDWIDTH", "STEP_SECONDS"}
    figures = numbers(ast.Module([node for node in shared.body if isinstance(node, ast.Assign)], []))
    assert {costs.INTERPRETER, costs.BANDWIDTH, costs.STEP_SECONDS} <= figures
    for stage in EVERY:
        file = Path(module(stage).__file__)
        assert not numbers(ast.parse(file.read_text(encoding="utf-8"))) & figures, file
    for folder in ("xcutils", "stages", "unidec", "longtail"):
        for file in (path for path in (ROOT / folder).rglob("*.py") if path != Path(costs.__file__)):
            assert not assigned(ast.parse(file.read_text(encoding="utf-8"))) & assigned(shared), file


def test_classifiers_by_hand(project):
    changes = ["classifier.batch_size=10", "classifier.encoder_lr=0", "classifier.labels=all"]
    made = cost("classifier", *changes, s=replace(SIZES, validation=1))
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
    assert cost("classifier", *changes, s=replace(SIZES, refit=False)).disk == made.disk / 2


def test_the_batch_s_labels_alone_make_a_step_free_of_the_number_of_labels(project):
    pools = [costs.distinct(48, n) for n in (5000, 5_000_000)]
    assert pools[0] < pools[1] <= 48
    changes = ["classifier.labels=batch", "classifier.encoder_lr=0", "classifier.cluster_from=100"]
    made = cost("classifier", *changes)
    assert "unit classifiers" in {p.name for p in made.parts}  # validation is now the fullest moment


def test_texts_that_are_read_once_are_kept_while_an_encoder_trains(project):
    """A bag's n-grams beside the tokens of all documents and labels."""
    features = 9000 + (9000 - 1000) + 20_000 + (20_000 - 5000)
    kept = 4 * features + 8 * 6000
    assert part(cost("encoder"), "texts").bytes == 4 * 29_000 + 8 * 6000 + kept
    assert part(cost("encoder", "encoder.kind=bi-gru"), "texts").bytes == 4 * 29_000 + 8 * 6000
    assert part(cost("classifier"), "texts").bytes == 4 * (9000 + 8000) + 8 * 1000
    assert part(cost("classifier", "classifier.encoder_lr=0"), "texts").bytes == 0


def test_the_graphs_by_hand(project):
    made = cost("index", "index.m=8", s=replace(SIZES, validation=0))
    assert part(made, "vectors in the graphs").bytes == 2 * 6_000 * 16
    assert part(made, "vectors").bytes == 4 * 6_000 * 16
    assert part(made, "links").bytes == pytest.approx(6_000 * (64 + 32 / 7 + 64))
    assert part(made, "vectors on their way").bytes == 2 * 4 * (2048 + 1000) * 16
    single = {p.name: p.bytes for p in INDEXES["hnswlib"].cost(11_000, 16, 8)}
    assert single["vectors in the graphs"] == 4 * 11_000 * 16
    assert single["links"] == pytest.approx(11_000 * (8 + 4 * 17 + 72 / 7 + 40 + 48 + 8 + 4 + 2))


def test_label_texts_by_hand(project):
    base = cost("gandalf")
    assert {p.name for p in base.parts} == {"interpreter", "positives", "positives of a fit"}
    assert base.disk == 2 * 4 * 1000
    dense = replace(SIZES, positives=100_000)  # 100 labels of a document, 20 documents of a label
    made = cost("gandalf", "gandalf.labels=0.5", "gandalf.delta=0.1", s=dense)
    targets = 1 + 5 * 99
    assert part(made, "positives by document and by label").bytes == 16 * 100_000 + 8 * 6000
    assert part(made, "targets, twice").bytes == 16 * 5000 * targets
    assert part(made, "counts").bytes == 30 * PAIRS  # 20 million pairs meet
    assert made.disk == 2 * (4 * 1000 + 12 * 2500 + 8 * 2500 * targets)
    every = cost("gandalf", "gandalf.labels=1", "gandalf.delta=0", s=dense)
    assert part(every, "targets, twice").bytes == 16 * 5000 * (1 + 20 * 99)
    walk = cost("gandalf", "gandalf.labels=1", "gandalf.targets=random-walk", s=dense)
    assert part(walk, "targets, twice").bytes == 16 * 5000 * 11 and part(walk, "walks").bytes == 65 * 5000 * 400
    own = cost("gandalf", "gandalf.labels=1", "gandalf.targets=self", s=dense)
    assert part(own, "positives of a fit").bytes == 24 * 100_000  # the targets are less than that


def test_label_texts_are_points_of_the_classifier(project):
    def made(*changes: str) -> Estimate:
        given = ["gandalf.targets=self", "classifier.encoder_lr=0", "classifier.epochs=1", "classifier.cluster_from=9"]
        return cost("classifier", *given, *changes)

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
    assert part(cost("score"), "rankings").bytes == 8 * (len(MODULAR.rows) + 1) * 100 * 200
    assert part(cost("unidec/score"), "rankings").bytes == 8 * (len(UNIDEC.rows) + 1) * 100 * 200
    sampled = part(cost("score", "score.sample=50"), "rankings").bytes
    assert sampled == 8 * 100 * (len(MODULAR.rows) * 50 + 200)
    many = cost("score", s=replace(SIZES, label_tokens=10**9))
    assert part(many, "words that documents and labels share").bytes == 45e9


def test_the_unified_method_has_no_row_of_shared_words(project):
    few, many = (cost("unidec/score", s=replace(SIZES, label_tokens=n)) for n in (10**3, 10**9))
    assert few.parts == many.parts and few.seconds == many.seconds
    assert cost("unidec/gandalf") == cost("gandalf")


def test_auxiliary_vectors_grow_with_k_up_to_the_labels(project):
    def peak(k: int) -> float:
        return cost("encoder", f"K={k}", "encoder.batch_size=1000").peak

    assert peak(0) < peak(100) < peak(5000) == peak(10**9)
    assert peak(100) - peak(0) == pytest.approx(4 * 4 * 100 * 16)


@pytest.mark.parametrize(
    ("stage", "changes", "named"),
    [
        ("classifier", ["classifier.loss=triplet", "classifier.batch_size=100000"], "classifier.batch_size (100000)"),
        ("encoder", ["encoder.labels=all"], "encoder.labels to batch"),
        ("classifier", ["classifier.labels=batch"], "encoder.model"),
        ("encoder", ["encoder.kind=bi-gru", "encoder.hidden=4000"], "encoder.hidden (4000)"),
        ("encoder", ["encoder.buckets=500000000"], "encoder.buckets (500000000)"),
        ("encoder", ["K=1000000000", "encoder.ngrams=1"], "lower K"),
        ("cluster", ["cluster.space=centroids"], "cluster.space to labels"),
        ("gandalf", ["gandalf.labels=1", "gandalf.delta=0.01"], "raise gandalf.delta (0.01)"),
        ("gandalf", ["gandalf.labels=1", "gandalf.targets=random-walk", "gandalf.walk=9000"], "gandalf.walk (9000)"),
        ("index", ["index.m=1000"], "index.m (1000)"),
        ("index", ["score.fusion_docs=1000000"], "score.fusion_docs (1000000)"),
        ("unidec/train", ["train.dim=4000"], "train.dim (8000 dimensions in all)"),
    ],
)
def test_a_stage_that_cannot_fit_names_what_scales_it(project, stage, changes, named):
    params = values()
    big = sizes.like("LF-AmazonTitles-1.3M", PUBLISHED, params)
    big = sizes.scaled(big, params, docs=200_000) if stage == "encoder" else big
    made = cost(stage, *changes, s=big)
    assert named in made.refusal(made.needed / 2)


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_of_a_folder_and_of_what_is_prepared_from_it_agree(own_project):
    raw = sizes.raw(own_project / DATASET, values())
    run_stages(own_project, ["prepare"])
    folder = own_project / "data" / "prepare"
    made = costs.sizes_of(folder / "train", folder / "labels", folder / "test")
    assert replace(made, validation=0, filtered=0) == replace(raw, validation=0)
    assert made.validation and made.filtered
    few = costs.sizes_of(folder / "train", 40, dim=16, embed_dim=7)
    assert few == replace(made, label_tokens=0, test=0, test_tokens=0, dim=16, embed_dim=7)


def test_lines_beyond_the_sample_are_counted(project, monkeypatch):
    whole = sizes.raw(project / DATASET, values())
    monkeypatch.setattr(sizes, "SAMPLE", 7)
    some = sizes.raw(project / DATASET, values())
    assert (some.docs, some.labels, some.test) == (whole.docs, whole.labels, whole.test)
    assert some.positives == pytest.approx(whole.positives, rel=0.5)


def test_a_damaged_folder_is_refused(own_project):
    (own_project / DATASET / "lbl.json.gz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"lbl\.json\.gz"):
        sizes.raw(own_project / DATASET, values())


def test_published_sizes(project):
    made = sizes.like("LF-AmazonTitles-131K", PUBLISHED, values())
    assert (made.docs, made.labels, made.test) == (294_805, 131_073, 134_835)
    assert made.positives == round(294_805 * 2.29) and made.doc_tokens == 13 * 294_805
    assert made.per_doc == pytest.approx(2.29, rel=1e-4)
    big = sizes.like("40M", PUBLISHED, values())
    assert big.labels == 40_000_000 and big.positives / big.docs == pytest.approx(22.2)
    long = sizes.like("LF-Wikipedia-500K", PUBLISHED, values("prepare.max_tokens=66"))
    assert long.doc_tokens == 64 * long.docs


def test_a_number_that_is_given_scales_what_goes_with_it(project):
    params = values()
    made = sizes.scaled(SIZES, params, docs=2000, labels=500)
    assert (made.docs, made.doc_tokens, made.positives) == (2000, 18_000, 6000)
    assert (made.labels, made.label_tokens, made.test_tokens) == (500, 2000, 1800)
    assert sizes.scaled(SIZES, params, positives=7, tokens=2.5, test=10).test_tokens == 25
    assert sizes.scaled(SIZES, params).validation == 250  # prepare.validation of the tiny project


# --- stages at their start --------------------------------------------------------------------------------------------


@pytest.fixture
def start(tiny_run, unidec_run, tiny_model, tmp_path) -> Callable:
    """Start a stage upon what the stages before it wrote: (folder, result)."""

    def run(stage: str):
        base = tiny_run if stage in STAGES else unidec_run
        folder, _ = branch(base, tmp_path / "branch", stage, **small_checkpoint(tiny_model))
        return folder, run_stage(folder, stage)

    return run


@pytest.mark.stage
@pytest.mark.parametrize("stage", ANNOUNCED)
def test_a_stage_says_what_it_will_take_before_it_starts_as_xc_estimate_does(start, monkeypatch, stage):
    asked, works = [], costs.announce

    def announce(own_cost, s: Sizes, params: dict) -> None:
        works(own_cost, s, params)
        asked.append((s, params, own_cost(s, params, HOST)))
        raise SystemExit(7)

    monkeypatch.setattr(costs, "announce", announce)
    folder, result = start(stage)
    name = stage.rpartition("/")[2]
    assert result.exit_code == 7 and not (folder / home(stage)).exists()
    assert re.fullmatch(rf"{name}: about 0\.\d\d GB and \d+ s \(.+ \d\.\d\d GB, .+\)\n", result.stderr), result.stderr
    (s, params, made), pipeline = asked[0], pipeline_of(stage)
    monkeypatch.chdir(folder)
    _, found = sizes.find(None, None, values())
    assert found.validation > 0 and s.validation == (0 if name == "embed" else found.validation)
    every = estimates.estimates(estimates.with_dims(found, pipeline, params, values()), pipeline, params, HOST)
    assert made == every[list(pipeline.stages).index(name)]


@pytest.mark.stage
@pytest.mark.parametrize("stage", ANNOUNCED)
def test_a_stage_refuses_what_cannot_fit_and_writes_nothing(start, monkeypatch, stage):
    monkeypatch.setenv("XC_MEMORY", "0.001")
    folder, result = start(stage)
    assert result.exit_code == 1 and result.stderr.startswith(f"error: {stage.rpartition('/')[2]} needs about 0.")
    assert result.stderr.count("\n") == 1 and "0.00 GB are available here" in result.stderr
    assert not (folder / home(stage)).exists() and not (folder / ".scratch").exists()


def announced(stage: str) -> None:
    """What the stage does before it starts, on SIZES."""
    pipeline = pipeline_of(stage)
    params = values(pipeline=pipeline)
    costs.announce(module(stage).cost, estimates.with_dims(SIZES, pipeline, params, values()), params)


@pytest.mark.parametrize("stage", ON_DEVICE)
def test_on_another_device_a_stage_is_told_its_estimate_of_the_cpu_and_not_refused(project, monkeypatch, capsys, stage):
    name = stage.rpartition("/")[2]
    monkeypatch.setenv("XC_MEMORY", "0.001")
    with pytest.raises(UserError, match=f"{name} needs about"):
        announced(stage)
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    announced(stage)
    said = capsys.readouterr().err
    assert said.startswith(f"{name}: about ") and said.count("\n") == 1
    assert said.endswith("); that is of a run on the CPU, and this one is on cuda\n")


@pytest.mark.parametrize("stage", [stage for stage in ANNOUNCED if stage not in ON_DEVICE])
def test_a_stage_that_always_works_on_the_cpu_is_refused_beside_another_device_too(project, monkeypatch, stage):
    assert "device" not in Path(module(stage).__file__).read_text(encoding="utf-8")
    monkeypatch.setenv("XC_MEMORY", "0.001")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    with pytest.raises(UserError, match=f"{stage.rpartition('/')[2]} needs about"):
        announced(stage)


# --- `xc estimate` ----------------------------------------------------------------------------------------------------


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


def test_a_row_says_what_a_stage_says(project, monkeypatch):
    made = cost("classifier", s=sizes.like("LF-AmazonTitles-131K", PUBLISHED, values()))
    monkeypatch.setenv("XC_MEMORY", "0.5")
    lines = list(estimates.table([made], HOST))
    assert re.search(r"about (\S+ GB)", made.line())[1] in lines[1] and made.largest() in lines[1]
    assert f"does not fit: {made.refusal(0.5e9)}" in lines


@pytest.mark.parametrize("name", ["LF-AmazonTitles-131K", "LF-AmazonTitles-1.3M", "40M"])
def test_xc_estimate_of_published_sizes(project, monkeypatch, name):
    monkeypatch.setenv("XC_MEMORY", "3")
    said = estimated(project, "--like", name, "-S", "classifier.labels=batch", "-S", "K=65536")
    assert said.startswith(f"{name}: N = ")
    assert ("does not fit" in said) == (name != "LF-AmazonTitles-131K")


def test_xc_estimate_sets_parameters_and_sizes(project):
    few, many = (estimated(project, "-S", f"classifier.epochs={n}", "--docs", "9000000") for n in (1, 50))
    assert few != many and "N = 9,000,000" in few
    assert "L = 7 labels, 11 positives" in estimated(project, "--labels", "7", "--positives", "11")


def test_xc_estimate_says_that_it_is_of_the_cpu_where_another_device_is_used(project, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    assert estimated(project).splitlines()[-1].startswith("All this is of a run on the CPU; on cuda a stage")


def test_xc_estimate_of_the_second_pipeline(project):
    lines, count = estimated(project, "--unidec").splitlines(), len(UNIDEC.stages)
    assert "N = 60 documents, L = 40 labels" in lines[0]
    assert [line.split()[0] for line in lines[2 : 2 + count]] == list(UNIDEC.stages)
    assert lines[2 + count].startswith("in all") and lines[-1].startswith("All stages fit into the ")


def test_parameters_of_the_second_pipeline_are_set_as_dvc_exp_run_does(project):
    def rows(*changes: str) -> list[str]:
        given = [word for change in changes for word in ("-S", change)]
        lines = estimated(project, "--unidec", "--docs", "9000000", *given).splitlines()
        return [line[:51] for line in lines[2 : 2 + len(UNIDEC.stages)]]  # without the largest parts

    usual = rows()
    wide, one_fit = rows("unidec/params.yaml:train.dim=4000"), rows("prepare.refit=false", "params.yaml:seed=3")
    train = list(UNIDEC.stages).index("train")
    assert wide[train] != usual[train] != one_fit[train]
    assert "D = 16" in estimated(project, "--unidec", "-S", "unidec/params.yaml:train.dim=8")


def test_changes_are_sorted_by_their_file():
    files = [MODULAR.params, UNIDEC.params]
    given = ["K=3", "dataset=a:b", "unidec/params.yaml:beta=2", "params.yaml:seed=1"]
    found = estimates.changes_by_file(given, files)
    assert found == {"params.yaml": ["K=3", "dataset=a:b", "seed=1"], "unidec/params.yaml": ["beta=2"]}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["-S", "unidec/params.yaml:beta=1"], "beta=1 is a parameter of another pipeline: add --unidec."),
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
