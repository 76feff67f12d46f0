"""What the papers found, as differences between experiments that should have the same sign here.

A setting is what is run: a parameter file and some changes to it. A claim is a sum and difference of settings at a
place, which is a row and a metric of metrics.json. In a claim's formula `setting:row` takes another row, and
`setting:classifier/tail` only the labels of a third of the training pairs (data/score/bins.csv). A direction is a
finding of the papers with its claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from study.experiments import Values
from study.sparse import SPARSE
from study.variants import TOKENS, TRANSFORMER, TRIPLET

# --- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The file that it starts from (params.yaml, unidec/params.yaml or a recipe), and what is changed in it."""

    start: str
    changes: Values


AUX_VECTORS = 4096
ONE_FIT = {"prepare.refit": False, "index.search": "exact"}  # one value of refit for all, so that embed is run once
# M1 alone: M4 is one epoch on a frozen encoder, and its rows are not looked at.
M1 = {**ONE_FIT, "gandalf.labels": 0.0, "cluster.head": 0, "classifier.encoder_lr": 0.0, "classifier.epochs": 1}
SOFTMAX = {"encoder.loss": "decoupled-softmax"}
BAGS: dict[str, Values] = {"tokens": TOKENS, "triplet": TRIPLET, "softmax": SOFTMAX}
THREE_EPOCHS = {**TRANSFORMER, "encoder.epochs": 3}  # what two cores can afford
TRANSFORMERS: dict[str, Values] = {
    "L3": {**THREE_EPOCHS, **SOFTMAX, "encoder.layers": 3},
    "L6": {**THREE_EPOCHS, **SOFTMAX, "encoder.layers": 0},  # 0 is all that the checkpoint has
}
BRIEF = {"encoder.epochs": 3, "encoder.positives": 1}  # the bag trained as briefly as the transformers
RANDOM = {"encoder.cluster_from": 1000}  # no clustered batch
# Batches with as small a share of all labels as the papers' have.
FEW_LABELS = {"encoder.batch_size": 128, "encoder.positives": 1, "encoder.cluster_last": 32}
M1_VARIANTS: dict[str, Values] = {
    **{f"{name}-head": {**BAGS[name], "K": AUX_VECTORS, "cluster.head": 50} for name in ("tokens", "softmax")},
    "tokens-k-means": {**TOKENS, "K": AUX_VECTORS, "cluster.algorithm": "k-means"},
    "tokens-centroids": {**TOKENS, "K": AUX_VECTORS, "cluster.space": "centroids"},
    **{f"{name}-random": {**BAGS[name], **RANDOM, "K": 0} for name in BAGS},
    "softmax-supcon": {**SOFTMAX, "K": 0, "encoder.loss": "supcon"},
    "softmax-one": {**SOFTMAX, "K": 0, "encoder.positives": 1},
    "softmax-all": {**SOFTMAX, "K": 0, "encoder.labels": "all"},
    # Auxiliary vectors at the transformer's own learning rate, as the paper's code has them.
    "L3-even": {**TRANSFORMERS["L3"], "K": AUX_VECTORS, "encoder.aux_lr": THREE_EPOCHS["encoder.lr"]},
    **{f"brief-K{k}": {**SOFTMAX, **BRIEF, "K": k} for k in (0, AUX_VECTORS)},
    **{f"plain-K{k}": {**SOFTMAX, **BRIEF, "K": k, "encoder.ngrams": 1} for k in (0, AUX_VECTORS)},
    **{f"few-{name}": {**BAGS[name], **FEW_LABELS, "K": 0} for name in ("triplet", "softmax")},
    **{f"few-{name}-random": {**BAGS[name], **FEW_LABELS, **RANDOM, "K": 0} for name in ("triplet", "softmax")},
}
# Renee on documents D, and on D and label texts Z; `scratch` from the pretrained encoder, `M1` from a trained one.
RENEE = {
    **ONE_FIT,
    "K": 0,
    "gandalf.order": "uniform",
    "gandalf.delta": 0.1,
    "gandalf.docs": True,
    "gandalf.same_size": False,
}
SCRATCH = {**RENEE, "encoder.epochs": 0}
LABEL_TEXTS = {"gandalf.labels": 1.0, "gandalf.targets": "co-occurrence"}
POINTS: dict[str, Values] = {
    "D": {"gandalf.labels": 0.0},
    "DZ": LABEL_TEXTS,
    "Z": {**LABEL_TEXTS, "gandalf.docs": False},
    "sampled": {**LABEL_TEXTS, "gandalf.same_size": True},
    "self": {**LABEL_TEXTS, "gandalf.targets": "self"},
    "glas": {**LABEL_TEXTS, "gandalf.targets": "glas"},
    "walk": {**LABEL_TEXTS, "gandalf.targets": "random-walk"},
    "delta-00": {**LABEL_TEXTS, "gandalf.delta": 0.0},
    "delta-02": {**LABEL_TEXTS, "gandalf.delta": 0.2},
}
# The unified pipeline as in the thesis: the encoder that is trained alone, one pool for both heads, nothing averaged.
THESIS = {
    **ONE_FIT,
    "gandalf.labels": 0.0,
    "train.pretrained": 0.0,
    "train.extra": 0,
    "train.average_after": 0,
    "train.encoder_loss": "decoupled-softmax",
    "train.symmetric": True,
    "train.classifier_symmetric": True,
}
BOTH_HEADS = {**THESIS, "train.classifier_loss": "decoupled-softmax+bce", "beta": 3, "eta": 6}
ENCODER_ALONE = {**THESIS, "train.classifier_loss": "none"}
UNIFIED_VARIANTS: dict[str, Values] = {
    "depsl-DS": {**ENCODER_ALONE, "train.symmetric": False},
    "depsl-DS-symmetric": ENCODER_ALONE,
    "depsl-SC": {**ENCODER_ALONE, "train.encoder_loss": "supcon", "train.symmetric": False},
    "depsl-SC-symmetric": {**ENCODER_ALONE, "train.encoder_loss": "supcon"},
    "unidec": BOTH_HEADS,
    "unidec-DS": {**BOTH_HEADS, "train.classifier_loss": "decoupled-softmax"},
    "unidec-positives": {**BOTH_HEADS, "beta": 9, "eta": 0},  # no mined negatives, and as many labels
}


def settings() -> dict[str, Setting]:
    """{name: setting} of every experiment but those of the recipes as they are."""
    return {
        **{name: Setting("params.yaml", {**M1, **changes}) for name, changes in encoders().items()},
        **modular_recipes(),
        **renee_settings(),
        **{name: Setting("unidec/params.yaml", changes) for name, changes in UNIFIED_VARIANTS.items()},
    }


def encoders() -> dict[str, Values]:
    """{setting: changes} of those that are about M1, in the default file."""
    out: dict[str, Values] = {}
    for name, changes in {**BAGS, **TRANSFORMERS}.items():
        for k in (0, 512, 2048, AUX_VECTORS, 65536) if name in ("tokens", "softmax") else (0, AUX_VECTORS):
            out[f"{name}-K{k}"] = {**changes, "K": k}
    return out | M1_VARIANTS


def modular_recipes() -> dict[str, Setting]:
    """{setting: setting} of those that start from a recipe of NGAME, DEXA, DPR or ANCE."""
    six_positives = {**M1, "encoder.positives": 6}  # as many as ngame draws
    return {
        **{name: Setting(f"recipes/{name}.yaml", M1) for name in ("dpr", "ance")},
        "ance-six": Setting("recipes/ance.yaml", six_positives),
        **{name: Setting(f"recipes/{name}.yaml", ONE_FIT) for name in ("ngame", "dexa", "dexa-gandalf")},
        "dexa-tail": Setting("recipes/dexa-gandalf.yaml", {**ONE_FIT, "gandalf.labels": 0.0}),
    }


def renee_settings() -> dict[str, Setting]:
    """{setting: setting} of those that start from Renee's recipe, some of them on the sparse dataset."""
    sparse = {"dataset": SPARSE}
    adam = {"classifier.optimizer": "adam", "classifier.lr": 0.03}
    changes: dict[str, Values] = {
        **{f"scratch-{name}": {**SCRATCH, **points} for name, points in POINTS.items()},
        **{f"sparse-{name}": {**SCRATCH, **points, **sparse} for name, points in POINTS.items()},
        **{f"M1-{name}": {**RENEE, **POINTS[name]} for name in ("D", "self", "DZ")},
        **{f"sparse-M1-{name}": {**RENEE, **POINTS[name], **sparse} for name in ("self", "DZ")},
        "M1-self-adam": {**RENEE, **POINTS["self"], **adam},
    }
    return {name: Setting("recipes/renee.yaml", values) for name, values in changes.items()}


# --- directions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One difference of settings.

    place     row and metric of metrics.json, as "encoder P@1"
    formula   settings with + and -, as "tokens-K4096 - tokens-K0"
    expected  its sign in the papers: "=" nearly none, "?" both signs
    paper     its sizes there
    """

    place: str
    formula: str
    expected: Literal[">", ">=", "<", "=", "?"]
    paper: str

    @property
    def metric(self) -> str:
        return self.place.split()[-1]

    @property
    def terms(self) -> list[tuple[int, str, str]]:
        """(weight, setting, row) of each part of the sum."""
        words = ["+", *self.formula.split()]
        row = self.place.rpartition(" ")[0]
        terms = []
        for sign, term in zip(words[::2], words[1::2]):
            setting, _, other_row = term.partition(":")
            terms.append((1 if sign == "+" else -1, setting, (other_row or row).replace("/", ", ")))
        return terms


@dataclass(frozen=True)
class Direction:
    """A finding of the papers; `here` says what this dataset and machine can show of it."""

    statement: str
    source: str
    here: str
    claims: list[Claim]


def gain(name: str) -> str:
    """What auxiliary vectors give an encoder."""
    return f"{name}-K{AUX_VECTORS} - {name}-K0"


def gain_over(more: str, less: str) -> str:
    """How much more they give one encoder than another."""
    return f"{gain(more)} - {less}-K{AUX_VECTORS} + {less}-K0"


ENCODER_P1 = "encoder P@1"
ENCODER_PSP1 = "encoder PSP@1"
CLASSIFIER_P1 = "classifier P@1"
CLASSIFIER_PSP1 = "classifier PSP@1"
BOTH_P1 = "concatenated P@1"
BOTH_PSP1 = "concatenated PSP@1"
BASE_MODEL = (
    "The tables of the thesis are about another base model (InceptionXML) than Renee, which stands for it here."
)

DIRECTIONS: dict[str, Direction] = {
    "D1": Direction(
        "A bag of embeddings with auxiliary vectors has a higher P@1 than without.",
        "DEXA Table 5: AmazonTitles-131K; AmazonTitles-1.3M",
        "`tokens` and `triplet` have the paper's loss, `tokens` its bag without n-grams, `softmax` the default loss.",
        [Claim(ENCODER_P1, gain(name), ">", "+7.27; +10.72") for name in BAGS],
    ),
    "D2": Direction(
        "The gain of auxiliary vectors shrinks as the encoder grows, and stays above 0 in P@1.",
        "DEXA Table 5: 131K; 1.3M. DistilBERT gains 1.31; 4.45, BERT 1.95; 4.47",
        "Two cores can afford MiniLM-L3 and L6 for three epochs; larger encoders are left out. All have the default "
        "loss: with the paper's, MiniLM-L3 collapsed in the second epoch (all texts alike). `brief` is the bag trained "
        "as briefly as the transformers: three epochs, one positive a visit; `plain` is that without n-grams, as the "
        "paper's. `even` has the auxiliary vectors learn at the transformer's own rate, as the paper's code has them, "
        "instead of twenty times as fast.",
        [
            Claim(ENCODER_P1, gain("L3"), ">", "+3.28; +3.79"),
            Claim(ENCODER_P1, gain("L6"), ">", "+2.56; +5.23"),
            Claim(ENCODER_P1, gain_over("softmax", "L3"), ">", "+3.99; +6.93"),
            Claim(ENCODER_P1, gain_over("brief", "L3"), ">", "+3.99; +6.93"),
            Claim(ENCODER_P1, gain_over("plain", "L3"), ">", "+3.99; +6.93"),
            Claim(ENCODER_P1, "L3-even - L3-K0", ">", "+3.28; +3.79"),
            Claim(ENCODER_P1, f"{gain('plain')} - L3-even + L3-K0", ">", "+3.99; +6.93"),
            Claim(ENCODER_P1, gain_over("L3", "L6"), ">", "+0.72; -1.44"),
        ],
    ),
    "D3": Direction(
        "P@1 grows with K; PSP@1 is about flat and falls at the largest K.",
        "DEXA Table 6: 131K, K from L/32 to L/2; 1.3M, K from L/320 to L/10; beside K = 65536 the last doubling",
        "K = 512 is L/20 and 4096 is L/2.5; 65,536 gives each label a vector of its own, further than the paper goes.",
        [
            claim
            for bag in ("tokens", "softmax")
            for claim in (
                Claim(ENCODER_P1, f"{bag}-K2048 - {bag}-K512", ">", "(grows)"),
                Claim(ENCODER_P1, f"{bag}-K4096 - {bag}-K512", ">", "+1.00; +3.14"),
                Claim(ENCODER_PSP1, f"{bag}-K4096 - {bag}-K512", "=", "+0.54; -0.46"),
                Claim(ENCODER_P1, f"{bag}-K65536 - {bag}-K4096", ">", "+0.64; +1.19"),
                Claim(ENCODER_PSP1, f"{bag}-K65536 - {bag}-K4096", "<", "+0.34; -0.47"),
            )
        ],
    ),
    "D4": Direction(
        "Vectors of their own for head labels raise P@1 at the same K.",
        "DEXA Table 6, K = 65536: 131K; 1.3M",
        "775 labels with 50 training documents or more have their own.",
        [Claim(ENCODER_P1, f"{bag}-head - {bag}-K4096", ">", "+0.28; +1.64") for bag in ("tokens", "softmax")],
    ),
    "D5": Direction(
        "Balanced clusters of label embeddings are better than plain k-means and than centroids of documents.",
        "DEXA Table 7: 131K",
        "",
        [
            Claim(ENCODER_P1, "tokens-K4096 - tokens-k-means", ">", "+1.20"),
            Claim(ENCODER_P1, "tokens-K4096 - tokens-centroids", ">", "+1.32"),
        ],
    ),
    "D6": Direction(
        "A small encoder with auxiliary vectors is as good as the next larger one without.",
        "DEXA Table 5: 131K; 1.3M",
        "The bag starts from MiniLM's token vectors and is trained until it stops gaining, the transformers are not.",
        [
            Claim(ENCODER_P1, "softmax-K4096 - L3-K0", ">=", "+0.92; +7.05"),
            Claim(ENCODER_P1, "L3-K4096 - L6-K0", ">=", "-0.04; +0.92"),
        ],
    ),
    "D7": Direction(
        "Clustered batches are better than random ones at the same cost (NGAME over DPR); ANCE is about as good.",
        "DEXA Table 2: 131K; 1.3M",
        "The first five rows differ in the batches alone; the recipes also in the loss, as the methods do. `few` has "
        "batches of 128 documents with one label each (clusters of up to 32), 1.2% of all labels, as batches of 1,600 "
        "have of 131K.",
        [
            *(Claim(ENCODER_P1, f"{bag}-K0 - {bag}-random", ">", "+0.76; +1.18") for bag in BAGS),
            *(
                Claim(ENCODER_P1, f"few-{bag} - few-{bag}-random", ">", "+0.76; +1.18")
                for bag in ("triplet", "softmax")
            ),
            Claim(ENCODER_P1, "ngame - dpr", ">", "+0.76; +1.18"),
            Claim(ENCODER_P1, "ance - ngame", "=", "+0.06; +0.62"),
            Claim(ENCODER_P1, "ance-six - ngame", "=", "+0.06; +0.62"),
        ],
    ),
    "D8": Direction(
        "Classifiers and fusion raise P over the encoder; PSP may fall.",
        "DEXA Table 2 and Renee Tables 2 and 17, NGAME: 131K; 1.3M",
        "The fusion here has a part that the paper's has not, the labels of similar training documents.",
        [
            claim
            for name in ("ngame", "dexa")
            for claim in (
                Claim(CLASSIFIER_P1, f"{name} - {name}:encoder", ">", "+2.08; +9.17"),
                Claim("fused P@1", f"{name} - {name}:encoder", ">", "+3.40; +10.93"),
                Claim("fused P@5", f"{name} - {name}:encoder", ">", "+0.78; +8.61"),
                Claim("fused PSP@1", f"{name} - {name}:encoder", "?", "+0.54; -3.85"),
            )
        ],
    ),
    "D9": Direction(
        "Documents and label texts with Gandalf's targets > as many points drawn from both > documents and label texts "
        "with one-hot targets > documents alone; label texts alone have at least the PSP of documents alone.",
        "Thesis Table 1.2: AmazonTitles-131K; WikiSeeAlsoTitles-320K",
        f"{BASE_MODEL} In names, D is documents and Z label texts; `scratch` starts from the pretrained encoder, `M1` "
        "from a trained one. `sparse` is `scratch` on the default dataset with three labels left of each training "
        "document (2.3 in AmazonTitles-131K), which leaves five documents to a label, as there.",
        [
            Claim(CLASSIFIER_P1, "scratch-DZ - scratch-sampled", ">", "+5.06; +5.38"),
            Claim(CLASSIFIER_P1, "scratch-sampled - scratch-self", ">", "+0.87; +1.50"),
            Claim(CLASSIFIER_P1, "scratch-self - scratch-D", ">", "+1.97; +2.90"),
            Claim(CLASSIFIER_P1, "scratch-DZ - scratch-D", ">", "+7.90; +9.78"),
            Claim(CLASSIFIER_PSP1, "scratch-DZ - scratch-D", ">", "+9.43; +11.25"),
            Claim(CLASSIFIER_PSP1, "scratch-Z - scratch-D", ">=", "+1.23; +8.97"),
            Claim(CLASSIFIER_P1, "sparse-DZ - sparse-sampled", ">", "+5.06; +5.38"),
            Claim(CLASSIFIER_P1, "sparse-sampled - sparse-self", ">", "+0.87; +1.50"),
            Claim(CLASSIFIER_P1, "sparse-self - sparse-D", ">", "+1.97; +2.90"),
            Claim(CLASSIFIER_P1, "sparse-DZ - sparse-D", ">", "+7.90; +9.78"),
            Claim(CLASSIFIER_PSP1, "sparse-DZ - sparse-D", ">", "+9.43; +11.25"),
            Claim(CLASSIFIER_PSP1, "sparse-Z - sparse-D", ">=", "+1.23; +8.97"),
        ],
    ),
    "D10": Direction(
        "Gandalf's targets are slightly better than GLaS's and a random walk's; delta = 0.1 is better than 0 and 0.2.",
        "Thesis Tables 1.2 and 1.7: 131K; WikiSeeAlsoTitles-320K",
        "The sizes are near the spread of seeds.",
        [
            claim
            for data in ("scratch", "sparse")
            for claim in (
                Claim(CLASSIFIER_P1, f"{data}-DZ - {data}-glas", ">", "+0.72; +1.03"),
                Claim(CLASSIFIER_P1, f"{data}-DZ - {data}-walk", ">", "+0.19; +0.11"),
                Claim(CLASSIFIER_P1, f"{data}-DZ - {data}-delta-00", ">", "+0.38; +0.80"),
                Claim(CLASSIFIER_P1, f"{data}-DZ - {data}-delta-02", ">", "+0.36; +0.91"),
            )
        ],
    ),
    "D11": Direction(
        "Gandalf raises coverage.",
        "Thesis Table 1.4: 131K; WikiSeeAlsoTitles-320K",
        "3,033 test documents can name at most 29% of the labels at k = 1. `dexa-gandalf` is the recipe, in which a "
        "label keeps nine tenths of its own text's targets, `dexa-tail` the same without label texts.",
        [
            Claim("classifier C@1", "scratch-DZ - scratch-D", ">", "+8.71; +5.74"),
            Claim("classifier C@5", "scratch-DZ - scratch-D", ">", "+11.74; +13.28"),
            Claim("classifier C@5", "scratch-self - scratch-D", "?", "(not given)"),
            Claim("classifier C@5", "dexa-gandalf - dexa-tail", ">", "(not given)"),
            Claim("classifier PSP@5", "dexa-gandalf - dexa-tail", ">", "(not given)"),
            Claim("classifier C@1", "sparse-DZ - sparse-D", ">", "+8.71; +5.74"),
            Claim("classifier C@5", "sparse-DZ - sparse-D", ">", "+11.74; +13.28"),
        ],
    ),
    "D12": Direction(
        "Gandalf gives more on sparse data than on dense; after a strong start P@1 may not rise, but PSP does.",
        "Thesis Table 1.3: 131K, NGAME and Renee; for the gain from scratch over that, InceptionXML's; for that on "
        "sparse data over that on dense, InceptionXML's on 131K (5 documents per label) and on 1.3M (38)",
        "The default dataset has 18 documents per label, the sparse one 5. The last row compares its rare labels with "
        "its frequent ones, each a third of the training pairs.",
        [
            Claim(CLASSIFIER_P1, "M1-DZ - M1-self", "?", "-0.19"),
            Claim(CLASSIFIER_PSP1, "M1-DZ - M1-self", ">", "+2.02"),
            Claim(CLASSIFIER_P1, "sparse-M1-DZ - sparse-M1-self", "?", "-0.19"),
            Claim(CLASSIFIER_PSP1, "sparse-M1-DZ - sparse-M1-self", ">", "+2.02"),
            Claim(CLASSIFIER_P1, "scratch-DZ - scratch-D - M1-DZ + M1-self", ">", "+8.07"),
            Claim(CLASSIFIER_P1, "sparse-DZ - sparse-D - scratch-DZ + scratch-D", ">", "+5.29"),
            Claim(CLASSIFIER_PSP1, "sparse-DZ - sparse-D - scratch-DZ + scratch-D", ">", "+4.71"),
            Claim(
                "classifier/tail R@10",
                "scratch-DZ - scratch-D - scratch-DZ:classifier/head + scratch-D:classifier/head",
                ">",
                "(not given)",
            ),
        ],
    ),
    "D13": Direction(
        "Decoupled softmax is better than SupCon for the encoder, in P and PSP.",
        "Thesis Table 2.6, DePSL one-way: Amazon-131K; AmazonTitles-1.3M",
        "The last rows are the modular pipeline's encoder (`encoder.loss`).",
        [
            Claim(ENCODER_P1, "depsl-DS - depsl-SC", ">", "+1.45; +1.98"),
            Claim(ENCODER_PSP1, "depsl-DS - depsl-SC", ">", "+1.30; +1.02"),
            Claim(ENCODER_P1, "softmax-K0 - softmax-supcon", ">", "+1.45; +1.98"),
            Claim(ENCODER_PSP1, "softmax-K0 - softmax-supcon", ">", "+1.30; +1.02"),
        ],
    ),
    "D14": Direction(
        "Binary cross-entropy added to the classifiers' loss: P rises, PSP falls.",
        "Thesis Table 2.4: AmazonTitles-1.3M (concatenated: WikiTitles-500K)",
        "",
        [
            Claim(BOTH_P1, "unidec - unidec-DS", ">", "+0.68 (+1.25)"),
            Claim(BOTH_PSP1, "unidec - unidec-DS", "<", "-3.93 (-1.18)"),
            Claim(CLASSIFIER_P1, "unidec - unidec-DS", ">", "+11.89"),
            Claim(CLASSIFIER_PSP1, "unidec - unidec-DS", "<", "-3.53"),
        ],
    ),
    "D15": Direction(
        "Both heads concatenated are better than either alone (with exceptions).",
        "Thesis Table 2.4, DS + (DS+BCE): AmazonTitles-1.3M",
        "",
        [
            Claim(BOTH_P1, "unidec - unidec:encoder", ">", "+4.90"),
            Claim(BOTH_P1, "unidec - unidec:classifier", ">", "+1.85"),
            Claim("concatenated P@5", "unidec - unidec:encoder", ">", "+3.89"),
            Claim("concatenated P@5", "unidec - unidec:classifier", ">", "+1.79"),
        ],
    ),
    "D16": Direction(
        "Mined negatives: P rises, PSP@1 falls.",
        "Thesis Table 2.5: Amazon-131K; WikiSeeAlso-320K; WikiTitles-500K; AmazonTitles-1.3M",
        "As in the thesis, more positives take the place of the negatives (beta = 9 instead of 3).",
        [
            Claim(BOTH_P1, "unidec - unidec-positives", ">", "+0.35; +0.95; +0.38; +0.90"),
            Claim(BOTH_PSP1, "unidec - unidec-positives", "<", "-1.00; -0.40; -0.51; -1.80"),
        ],
    ),
    "D17": Direction(
        "A symmetric loss raises PSP; P rises on long texts and falls on short ones.",
        "Thesis Table 2.6, DePSL: WikiTitles-500K; AmazonTitles-1.3M, the two of short texts",
        "Documents here have 4 words on average: P should fall. Long texts are not at hand.",
        [
            Claim(ENCODER_PSP1, "depsl-DS-symmetric - depsl-DS", ">", "+0.65; +1.73"),
            Claim(ENCODER_P1, "depsl-DS-symmetric - depsl-DS", "<", "-0.79; -0.94"),
            Claim(ENCODER_PSP1, "depsl-SC-symmetric - depsl-SC", ">", "+0.41; +1.36"),
            Claim(ENCODER_P1, "depsl-SC-symmetric - depsl-SC", "<", "-0.97; -1.60"),
        ],
    ),
    "D18": Direction(
        "Label texts as points (one-hot) and an encoder trained before both help Renee.",
        "Renee Table 12: AmazonTitles-131K",
        "",
        [
            Claim(CLASSIFIER_P1, "scratch-self - scratch-D", ">", "+2.88"),
            Claim(CLASSIFIER_P1, "M1-D - scratch-D", ">", "+6.81"),
            Claim(CLASSIFIER_P1, "M1-self - M1-D", ">", "+0.35"),
            Claim(CLASSIFIER_P1, "M1-self - scratch-self", ">", "+4.28"),
        ],
    ),
    "D19": Direction(
        "More labels in a step help decoupled softmax.",
        "Thesis Table 2.3, DEXML, AmazonTitles-1.3M: 8,192 to 90,112 labels; 90,112 to all",
        "With one positive per document a step has about a thousand labels, with six about four times as many; more "
        "positives are also more to learn from. `all` is all 10,402.",
        [
            Claim(ENCODER_P1, "softmax-K0 - softmax-one", ">", "+11.86"),
            Claim(ENCODER_P1, "softmax-all - softmax-K0", ">", "+4.39"),
        ],
    ),
    "D20": Direction(
        "SGD with momentum is at least as good as Adam for classifiers with binary cross-entropy over all labels.",
        "Renee Table 5: AmazonTitles-131K",
        "Each optimizer has its own learning rate.",
        [
            Claim(CLASSIFIER_P1, "M1-self - M1-self-adam", ">=", "+0.74"),
        ],
    ),
}
