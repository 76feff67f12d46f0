"""How much memory, time and disk a stage will take, from the sizes of the data and the parameters, before it starts.

One function per stage: (Sizes, params, Host) -> Estimate. Each names the arrays that stand in memory together at the
stage's fullest moments; the peak is the largest of these sums. Memory mapped from files counts as resident, because the
system shows it so, but not as needed: it can be dropped and read again.

Time is rough: floating-point work by the speed of a matrix product timed when asked, and constants measured on two
virtual cores. Training is counted to its last epoch; early stopping makes it shorter. A graphics card's own memory is
not looked at: what is estimated is a run on the CPU, and a stage that works on another device is not refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp, log2
from pathlib import Path
from typing import NamedTuple

from xcutils.core import artifacts, console, runtime
from xcutils.core.errors import UserError
from xcutils.core.folds import CHOOSE
from xcutils.core.params import load_all
from xcutils.model.checkpoints import load_config

FLOAT, LONG, INT = 4, 8, 4  # bytes
BASE = 0.28e9  # interpreter, numpy, torch and its threads
TRANSFORMERS = 0.17e9  # what importing the library and a tokenizer's vocabulary adds
TOKENIZER = 0.05e9  # a tokenizer and its vocabulary
HOLES = 2  # what every step makes anew takes twice its size: see runtime on freed blocks
MINUTES, HOURS = 120, 7200  # from so many seconds on a time is said in minutes, in hours

# What the code that is estimated holds at once, as it is written there.
SCORES = 1 << 26  # neighbours.exact
SHARED = 1 << 24  # bm25: scores
STEP_SCORES = 1 << 24  # losses: scores of a step
SUBTREE = 8192  # clustering
PADDED = 4096  # encoders: padded tokens in one pass
TEXTS = 4096  # encoders: texts in one pass
COUNTED = 1 << 16  # encoders: texts whose n-grams are counted at once
PAIRS, WALKS = 1 << 22, 1 << 14  # correlations: co-occurrences, walks
CHUNK = 1 << 14  # score, neighbours: documents, vectors
DEPTH, ROWS = 100, 7  # score: labels ranked, rankings kept

CACHE = 64e6  # bytes
BANDWIDTH = 12e9  # bytes moved per second where memory and not arithmetic is the limit


@dataclass(frozen=True)
class Sizes:
    """The numbers of a prepared dataset that memory and time depend on; 0 where a stage does not need them."""

    docs: int  # N, training documents, validation included
    labels: int  # L
    positives: int = 0  # pairs of a training document and a label
    validation: int = 0  # documents
    test: int = 0  # documents
    doc_tokens: int = 0  # of all training documents together
    label_tokens: int = 0
    test_tokens: int = 0
    filtered: int = 0  # filter pairs of the training documents
    refit: bool = True


@dataclass(frozen=True)
class Host:
    """What the estimate is for."""

    threads: int
    speed: float  # floating-point operations per second of all threads together


class Part(NamedTuple):
    """Something that stands in memory, and what makes it smaller."""

    name: str
    bytes: float
    remedy: str = ""  # "lower classifier.batch_size (1024)"; empty where the data alone decides
    mapped: bool = False  # a file's pages


@dataclass(frozen=True)
class Estimate:
    """A stage's fullest moment, its time and the size of what it writes."""

    stage: str
    parts: list[Part]
    seconds: float
    disk: float

    @property
    def peak(self) -> float:
        """Bytes resident at the fullest moment."""
        return sum(part.bytes for part in self.parts)

    @property
    def needed(self) -> float:
        """The peak without what the system can drop and read again."""
        return sum(part.bytes for part in self.parts if not part.mapped)

    def largest(self, count: int = 3) -> str:
        """The largest parts in words."""
        parts = sorted(self.parts, key=lambda part: -part.bytes)[:count]
        return ", ".join(f"{part.name} {gigabytes(part.bytes)}" for part in parts)

    def line(self) -> str:
        return f"{self.stage}: about {gigabytes(self.peak)} and {duration(self.seconds)} ({self.largest()})"

    def refusal(self, room: float) -> str:
        """Why it cannot run in `room` bytes and what to lower; empty when it can."""
        if self.needed <= room:
            return ""
        held = [part for part in self.parts if not part.mapped]
        part = max((p for p in held if p.remedy), key=lambda p: p.bytes, default=max(held, key=lambda p: p.bytes))
        still = self.needed - part.bytes
        more = f" (even without them {gigabytes(still)} are needed)" if still > room else ""
        return (
            f"{self.stage} needs about {gigabytes(self.needed)} of memory and {gigabytes(room)} can be had here: "
            f"{part.remedy or 'take fewer documents or labels'}, since {gigabytes(part.bytes)} of it are for the "
            f"{part.name}{more}; `xc estimate` shows every stage, XC_MEMORY=<GB> overrules this."
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count < 10e9 else f"{count / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    if seconds < MINUTES:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < HOURS else f"{seconds / 3600:,.0f} h"


# --- encoders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """An encoder by its sizes."""

    kind: str
    dim: int  # D of what it gives
    rows: int  # token and n-gram vectors
    width: int  # dimensions of those
    dense: int  # other weights
    layers: int = 0
    inner: int = 0
    ngrams: int = 1
    by: str = ""  # the parameter that sets the dimension

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return FLOAT * (self.rows * self.width + self.dense)

    def features(self, texts: float, tokens: float) -> float:
        """Tokens and n-grams of that many texts."""
        return sum(max(0.0, tokens - (n - 1) * texts) for n in range(1, self.ngrams + 1))

    def used(self, texts: float, tokens: float) -> float:
        """Different rows among them, by Heaps' law: n ** 0.78 words, n ** 0.86 n-grams (as in the default dataset)."""
        return min(self.rows, self.features(texts, tokens) ** (0.86 if self.ngrams > 1 else 0.78))

    def step(self, texts: float, tokens: float) -> float:
        """Bytes of a forward and backward pass over that many texts at once, the weights' gradients included."""
        out = 6 * FLOAT * texts * self.dim
        picked = self.used(texts, tokens) * self.width * FLOAT
        if self.kind == "bag-of-embeddings":  # rows, product, gradients of both, the update and its two moments
            return HOLES * (out + 7 * picked) + 7 * LONG * self.features(texts, tokens)
        if self.kind == "bi-gru":
            return HOLES * (out + 6 * picked + FLOAT * tokens * (2 * self.width + 8 * self.dim)) + FLOAT * self.dense
        activations = FLOAT * self.layers * (tokens + 2 * texts) * (10 * self.dim + 2 * self.inner)
        return HOLES * (out + activations) + self.weights

    def forward(self, texts: float, tokens: float, threads: int, chunk: int = TEXTS) -> float:
        """Bytes of embedding that many texts without gradients, by chunks, one per thread."""
        share = min(1.0, chunk / max(texts, 1))
        chunks = min(threads, ceil(texts / chunk))
        texts, tokens = share * texts, share * tokens
        picked = self.used(texts, tokens) * self.width * FLOAT
        if self.kind == "bag-of-embeddings":
            return chunks * (2 * picked + 7 * LONG * self.features(texts, tokens) + 2 * FLOAT * texts * self.dim)
        if self.kind == "bi-gru":
            return chunks * (2 * picked + FLOAT * PADDED * (2 * self.width + 8 * self.dim))
        # Chunks differ in width and each thread keeps the blocks it has freed: about twice as much again.
        return 2 * HOLES * chunks * FLOAT * PADDED * (6 * self.dim + 2 * self.inner)

    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        """(floating-point operations, bytes moved) of embedding that many texts, with gradients or without."""
        passes = 3 if train else 1
        picked = self.used(texts, tokens) * self.width * FLOAT
        features = self.features(texts, tokens)
        if self.kind == "bag-of-embeddings":
            return 0.0, passes * (6 * picked + features * (20 * LONG + 2 * FLOAT * self.width))
        if self.kind == "bi-gru":
            return 4 * passes * self.dense * tokens, passes * 10 * picked
        return 2.2 * passes * self.dense * (tokens + 2 * texts), 0.0  # not quite a large matrix product's speed


NOTHING = Network("transformer", 0, 0, 0, 0)  # where there is no pretrained row


def embedder(params: dict) -> Network:
    """The pretrained transformer of the embed stage."""
    return _transformer(_config(params["embed"]["model"]), params["embed"]["layers"], "embed.model")


def trained(params: dict) -> Network:
    """The encoder that M1 and M4 train, or the unified method."""
    if "train" in params:
        net, p = _network(params["train"], "train"), params["train"]
        heads = 1 if p["classifier_loss"] == "none" else 2
        inputs = net.dim + beside(params).dim
        dim = p["dim"] or inputs
        return replace(net, dim=heads * dim, dense=net.dense + heads * (inputs + 1) * dim)
    return _network(params["encoder"], "encoder")


def beside(params: dict) -> Network:
    """The pretrained encoder beside the unified method's, which is taken to be as large as its `model`."""
    p = params["train"]
    return _transformer(_config(p["model"]), 0, "train.model") if p["pretrained"] else NOTHING


def _network(p: dict, section: str) -> Network:
    config = _config(p["model"])
    if p["kind"] == "transformer":
        return _transformer(config, p["layers"], f"{section}.model")
    rows, width = _number(config, "vocab_size"), _number(config, "hidden_size", "dim")
    if p["kind"] == "bi-gru":
        dense = 6 * p["hidden"] * (width + p["hidden"] + 2)
        return Network("bi-gru", 2 * p["hidden"], rows, width, dense, by=f"{section}.hidden")
    rows += p["buckets"] if p["ngrams"] > 1 else 0
    return Network("bag-of-embeddings", width, rows, width, rows, ngrams=p["ngrams"], by=f"{section}.model")


def _transformer(config: dict, layers: int, by: str) -> Network:
    dim, inner = _number(config, "hidden_size", "dim"), _number(config, "intermediate_size", "hidden_dim")
    layers = layers or _number(config, "num_hidden_layers", "n_layers")
    rows = _number(config, "vocab_size") + config.get("max_position_embeddings", 0)
    dense = layers * (4 * dim * dim + 2 * dim * inner + 9 * dim + inner)
    return Network("transformer", dim, rows, dim, dense, layers, inner, by=by)


def _config(checkpoint: str) -> dict:
    return load_config(checkpoint)


def _number(config: dict, *names: str) -> int:
    for name in names:
        if isinstance(config.get(name), int):
            return config[name]
    raise UserError(f"the checkpoint's config.json has no {' or '.join(names)}: name another checkpoint.")


# --- stages -----------------------------------------------------------------------------------------------------------


def prepare(s: Sizes, params: dict, host: Host) -> Estimate:
    """Ids and texts as Python strings, tokens and positives as arrays."""
    count, tokens = s.docs + s.labels + s.test, s.doc_tokens + s.label_tokens + s.test_tokens
    text = 5 * tokens  # bytes of the texts themselves
    parts = [
        Part("interpreter", BASE + TOKENIZER),
        Part("ids and texts", count * 2 * 66 + 2 * text),
        Part("their bytes", count * 2 * 42 + text),
        Part("tokens", 3 * INT * tokens, "lower prepare.max_tokens"),
        Part("positives", s.positives * 2 * (INT + INT)),
        Part("table of ids", 110 * count),
    ]
    disk = INT * tokens + INT * s.positives + 2 * LONG * count * 3 + text + 12 * count
    return Estimate("prepare", parts, 3 + count * 45e-6 + tokens * 1e-6, disk)


def embed(s: Sizes, params: dict, host: Host) -> Estimate:
    """All embeddings of documents and labels in memory, written at the end."""
    net = embedder(params)
    texts, tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    vectors = FLOAT * texts * net.dim
    smaller = f"choose an embed.model of fewer dimensions than {net.dim}"
    parts = [
        Part("interpreter", BASE + TRANSFORMERS),
        Part("tokens", INT * tokens + LONG * texts, mapped=True),
        Part("encoder", net.weights, mapped=True),
        Part("activations", net.forward(texts, tokens, host.threads, 1024), "lower XC_THREADS"),
        Part("vectors", vectors, smaller),
    ]
    flops, _ = net.work(texts, tokens, train=False)
    return Estimate("embed", parts, 6 + flops / host.speed + vectors / BANDWIDTH, vectors)


def gandalf(s: Sizes, params: dict, host: Host) -> Estimate:
    """A fit's positives, by document and by label; the targets of all labels, first as blocks and then in one piece."""
    p, pair = params["gandalf"], INT + FLOAT
    texts, _, written = _label_texts(s, p)
    kept = [Part("interpreter", BASE), Part("positives", INT * s.positives + LONG * s.docs, mapped=True)]
    moments = [[Part("positives of a fit", 3 * LONG * s.positives)]]
    seconds = 4e-8 * s.positives
    if texts:
        walks, own = p["targets"] == "random-walk", p["targets"] == "self"
        met = 0 if own else 2 * s.positives**2 / max(1, s.docs)  # pairs of labels in one document: long ones have most
        counted = 65 * min(s.labels, WALKS) * p["walk"] if walks else 30 * min(met, PAIRS)
        seconds += 3e-7 * s.labels * p["walk"] if walks else 4e-8 * met
        fewer = f"lower gandalf.top ({p['top']})" if walks else f"raise gandalf.delta ({p['delta']:g})"
        moments.append(
            [
                Part("positives by document and by label", 2 * pair * s.positives + LONG * (s.docs + s.labels)),
                Part("walks" if walks else "counts", counted, f"lower gandalf.walk ({p['walk']})" if walks else ""),
                Part("targets, twice", 2 * pair * s.labels * _targets(s, p), fewer),
            ]
        )
    disk = _folds(s) * (INT * s.docs + (INT + LONG) * texts + pair * written)
    return Estimate("gandalf", _fullest(kept, moments), 3 + _folds(s) * seconds, disk)


def _label_texts(s: Sizes, p: dict) -> tuple[float, float, float]:
    """(label texts that M4 trains on, points of an epoch, targets of those texts together)."""
    texts, points = p["labels"] * s.labels, s.docs + p["labels"] * s.labels
    if p["same_size"]:
        texts, points = texts * s.docs / points, s.docs
    return texts, points, texts * _targets(s, p)


def _targets(s: Sizes, p: dict) -> float:
    """Targets of a label's text, its own label included.

    P(i | j) of all other labels i adds up to the other labels of j's documents, on average: at most 1 / delta times as
    many can be above delta, and at most frequency times as many meet j at all. Half of 1 / delta is what is found (0.44
    at 0.1, on the default dataset and on one generated like LF-AmazonTitles-1.3M).
    """
    if p["targets"] == "self":
        return 1
    if p["targets"] == "random-walk":
        return min(s.labels, 1 + p["top"])
    others, frequency = max(0, s.positives / max(1, s.docs) - 1), s.positives / max(1, s.labels)
    most = 0.5 / p["delta"] if p["delta"] else frequency
    return min(s.labels, 1 + min(frequency, most) * others)


def cluster(s: Sizes, params: dict, host: Host) -> Estimate:
    """The label embeddings, those of labels that share a vector once more, and the clusters' means."""
    dim, k = embedder(params).dim, params["K"]
    vectors = FLOAT * s.labels * dim
    shared = 0 < k < s.labels
    smaller = f"choose an embed.model of fewer dimensions than {dim}"
    parts = [Part("interpreter", BASE), Part("label vectors", vectors, mapped=True)]
    seconds = 4.0
    if params["cluster"]["space"] == "centroids":
        docs = FLOAT * s.docs * dim
        parts += [
            Part("document vectors", docs, mapped=True),
            Part("copy of the document vectors", docs, "set cluster.space to labels"),
            Part("centroids", 2 * vectors, "set cluster.space to labels"),
            Part("positives", 3 * (INT + FLOAT) * s.positives),
        ]
        seconds += 2 * FLOAT * s.positives * dim / BANDWIDTH
    if shared:
        parts.append(Part("copy of the label vectors", vectors, smaller))
        parts += _clustering(s.labels, k, dim, host)
        seconds += _clustering_time(s.labels, k, dim)
        if params["cluster"]["algorithm"] == "k-means":
            seconds += 30 * 2 * s.labels * k * dim / host.speed
        parts.append(Part("means", FLOAT * k * dim, f"lower K ({k})"))
    return Estimate("cluster", parts, seconds, INT * s.labels)


def _clustering(count: int, k: int, dim: int, host: Host) -> list[Part]:
    """What balanced_clusters holds beside its input."""
    rows = min(count, SUBTREE) * dim * FLOAT
    return [
        Part("subtrees", host.threads * 5 * rows, "lower XC_THREADS"),
        Part("tree", count * (3 * LONG + 4 * INT)),
    ]


def _clustering_time(count: int, k: int, dim: int) -> float:
    """33 s for a million vectors of 384 dimensions into 125,000 clusters."""
    return 33e-6 * count * dim / 384 * log2(max(2, k)) / 17


def encoder(s: Sizes, params: dict, host: Host) -> Estimate:
    """M1: weights with their moments and a copy of the best epoch, and the bank of document embeddings."""
    p, net, k = params["encoder"], trained(params), min(params["K"], s.labels)
    fewer = _fewer(net)
    per_doc = s.positives / max(1, s.docs)
    docs = min(p["batch_size"], s.docs)
    every = p["labels"] == "all"
    pool = s.labels if every else _distinct(docs * (min(p["positives"], per_doc) + p["mined"]), s.labels)
    encoded = min(p["chunk"], pool) if every else pool  # labels encoded at once
    tokens = docs * s.doc_tokens / max(1, s.docs) + encoded * s.label_tokens / max(1, s.labels)
    vectors = FLOAT * s.labels * net.dim
    kept = [
        Part("interpreter", BASE + (TRANSFORMERS if net.kind == "transformer" else TOKENIZER)),
        Part("tokens and positives", INT * (s.doc_tokens + s.label_tokens + s.positives), mapped=True),
        Part("pairs and offsets", LONG * (2 * s.docs + s.labels) + 20 * s.filtered + 3 * INT * s.labels),
        Part("bank of documents", FLOAT * s.docs * net.dim, fewer),
    ]
    if p["mined"]:
        near = INT * s.docs * p["mined_from"] + 3 * LONG * s.positives
        kept.append(Part("mined negatives", near, f"lower encoder.mined_from ({p['mined_from']})"))
    learnt = [
        Part("encoder, moments and best epoch", 4 * net.weights, _smaller(net, p)),
        Part("auxiliary vectors, moments and best epoch", 4 * FLOAT * k * net.dim, f"lower K ({params['K']})"),
    ]
    moments = [
        [
            *learnt,
            Part("batch", net.step(docs + encoded, tokens), f"lower encoder.batch_size ({p['batch_size']})"),
            Part("scores", _scores(p["loss"], docs, pool), f"lower encoder.batch_size ({p['batch_size']})"),
            *([Part("label vectors and their gradients", 8 * vectors, "set encoder.labels to batch")] if every else []),
        ],
        [
            *learnt,
            Part("label vectors", vectors, fewer),
            Part("scores", FLOAT * min(s.validation * s.labels, SCORES)),
            Part("validation documents", FLOAT * s.validation * net.dim, "lower prepare.validation"),
        ],
    ]
    if net.kind == "bag-of-embeddings":
        sets = ((s.docs, s.doc_tokens), (s.labels, s.label_tokens))
        features = max(min(1, COUNTED / max(1, texts)) * net.features(texts, tokens) for texts, tokens in sets)
        lower = f"lower encoder.ngrams ({p['ngrams']})" if p["ngrams"] > 1 else ""
        counts = Part("n-grams of some texts", 10 * LONG * features, lower)
        moments.append([Part("encoder", 3 * net.weights, _smaller(net, p)), counts])
    if p["cluster_from"] < p["epochs"]:
        copy = Part("copy of the bank", FLOAT * s.docs * net.dim, fewer)
        moments.append([*learnt, copy, *_clustering(s.docs, s.docs, net.dim, host)])
    flops, moved = net.work(docs + encoded, tokens, train=True)
    if every:  # each chunk is encoded once more for its gradient
        flops, moved = (part * 4 / 3 * (docs + pool) / (docs + encoded) for part in (flops, moved))
    steps = p["epochs"] * s.docs / docs
    step = (flops + 6 * docs * pool * net.dim) / host.speed + (moved + 6 * FLOAT * docs * pool) / BANDWIDTH + 2e-3
    checks = p["epochs"] * _validation_time(s, net, host)
    clusters = max(0, p["epochs"] - p["cluster_from"]) / p["refresh"] * _clustering_time(s.docs, s.docs // 8, net.dim)
    seconds = 5 + _folds(s) * (steps * step + clusters) + checks
    disk = _folds(s) * (net.weights + FLOAT * k * net.dim + INT * s.labels)
    return Estimate("encoder", _fullest(kept, moments), seconds, disk)


def augment(s: Sizes, params: dict, host: Host) -> Estimate:
    """M3: one fold's label embeddings, raw and augmented, and the auxiliary vectors that are added."""
    net, k = trained(params), min(params["K"], s.labels)
    fewer, vectors = _fewer(net), FLOAT * s.labels * net.dim
    docs = Part("document vectors", FLOAT * s.docs * net.dim, fewer)
    kept = [
        Part("interpreter", BASE + (TRANSFORMERS if net.kind == "transformer" else 0)),
        Part("tokens", INT * (s.doc_tokens + s.label_tokens) + LONG * (s.docs + s.labels), mapped=True),
        Part("encoder", 2 * net.weights),
    ]
    moments = [
        [docs, Part("passes", net.forward(s.docs, s.doc_tokens, host.threads), "lower XC_THREADS")],
        [Part("label vectors", vectors, fewer), Part("passes", net.forward(s.labels, s.label_tokens, host.threads))],
        [Part("label vectors, three times", 3 * vectors, fewer), Part("auxiliary vectors", 2 * FLOAT * k * net.dim)],
    ]
    texts, tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    flops, moved = net.work(min(texts, TEXTS), tokens * min(1, TEXTS / texts), train=False)
    written = FLOAT * (s.docs + 2 * s.labels) * net.dim
    once = max(1, texts / TEXTS) * (flops / host.speed + moved / BANDWIDTH) + 3 * written / BANDWIDTH
    return Estimate("augment", _fullest(kept, moments), 3 + _folds(s) * once, _folds(s) * written)


def classifier(s: Sizes, params: dict, host: Host) -> Estimate:
    """M4: a row per label with two moments and a copy of the best epoch, and what a step makes of those it reads."""
    p, net = params["classifier"], trained(params)
    fewer, table = _fewer(net), FLOAT * s.labels * net.dim
    texts, points, targets = _label_texts(s, params["gandalf"])
    bank, positives = s.docs + texts, s.positives + targets
    all_tokens = s.doc_tokens + texts * s.label_tokens / max(1, s.labels)
    docs, every = min(p["batch_size"], points), p["labels"] == "all"
    pool = s.labels if every else _distinct(docs * positives / max(1, bank), s.labels)
    tokens = docs * all_tokens / max(1, bank)
    moving = p["encoder_lr"] > 0
    batch = f"lower classifier.batch_size ({p['batch_size']})"
    kept = [
        Part("interpreter", BASE + (TRANSFORMERS if net.kind == "transformer" else 0)),
        Part("documents and labels to start from", FLOAT * (bank + s.labels) * net.dim, mapped=True),
        Part("bank of documents", FLOAT * s.docs * net.dim, fewer),
        Part("pairs and offsets", LONG * (2 * s.docs + s.labels) + 20 * s.filtered + INT * s.labels),
        Part("classifiers, moments and best epoch", 4 * table, fewer),
        Part("encoder", (4 if moving else 1) * net.weights, "set classifier.encoder_lr to 0" if moving else ""),
    ]
    if texts:
        held = FLOAT * texts * net.dim + INT * all_tokens + (INT + FLOAT) * positives + 2 * LONG * bank
        kept.append(
            Part("label texts and their targets", held, f"lower gandalf.labels ({params['gandalf']['labels']:g})")
        )
    moments = [
        [
            Part(
                "step's labels",
                6 * HOLES * FLOAT * pool * net.dim,
                "set classifier.labels to batch" if every else batch,
            ),
            Part("scores", _scores(p["loss"], docs, pool), batch),
            Part("batch", net.step(docs, tokens) if moving else 6 * HOLES * FLOAT * docs * net.dim, batch),
        ],
        [
            Part("unit classifiers", table, fewer),
            Part("scores", FLOAT * min(s.validation * s.labels, SCORES)),
            Part("validation documents", FLOAT * s.validation * net.dim, "lower prepare.validation"),
        ],
    ]
    clusters = 0.0
    if p["cluster_from"] < p["epochs"]:
        copy = Part("copy of the bank", FLOAT * points * net.dim, fewer)
        moments.append([copy, *_clustering(points, points, net.dim, host)])
        clusters = (p["epochs"] - p["cluster_from"]) / p["refresh"] * _clustering_time(points, points // 8, net.dim)
    flops, moved = net.work(docs, tokens, train=moving)
    moved += 20 * FLOAT * pool * net.dim + 6 * FLOAT * docs * pool
    step = (flops + 6 * docs * pool * net.dim) / host.speed + moved / BANDWIDTH + 2e-3
    steps, checks = p["epochs"] * points / docs, p["epochs"] * _validation_time(s, net, host)
    disk = _folds(s) * (table + FLOAT * s.docs * net.dim + net.weights)
    seconds = 4 + _folds(s) * (steps * step + clusters) + checks
    return Estimate("classifier", _fullest(kept, moments), seconds, disk)


def index(s: Sizes, params: dict, host: Host) -> Estimate:
    """Three graphs at a time, each with its own copy of the vectors."""
    p, net = params["index"], trained(params)
    count = 2 * s.labels + s.docs
    parts = [Part("interpreter", BASE)]
    if p["search"] == "exact":
        return Estimate("index", parts, 3, 0)
    graph = count * _graph_bytes(net.dim, p["m"])
    chunks = sum(min(n, CHUNK) for n in (s.labels, s.labels, s.docs))
    parts += [
        Part("vectors", FLOAT * count * net.dim, mapped=True),
        Part("vectors in the graphs", FLOAT * count * net.dim, "set index.search to exact"),
        Part("links", graph - FLOAT * count * net.dim, f"lower index.m ({p['m']})"),
        Part("vectors on their way", 2 * FLOAT * chunks * net.dim),
    ]
    at_once = max(1, min(3 * p["threads"], host.threads))
    seconds = 3 + count / at_once * _search_time(p["ef_construction"], p["m"], max(s.labels, s.docs), net.dim)
    return Estimate("index", parts, seconds, count * (FLOAT * net.dim + 8 * p["m"] + 24))


def _search_time(ef: int, m: int, count: int, dim: int) -> float:
    """Seconds of one search or insertion on one thread; four times as long where the vectors are not in the cache."""
    far = 4 if FLOAT * count * dim > CACHE else 1
    return 4e-10 * far * ef * (m / 24) ** 0.5 * log2(max(2, count)) * dim


def _graph_bytes(dim: int, m: int) -> float:
    """Bytes of a vector in an HNSW graph: itself, its id, 2 m links, m more on 1 in m, lock, level and table of ids."""
    return FLOAT * dim + LONG + (2 * m + 1) * INT + (m * INT + 40) / (m - 1 or 1) + 40 + 48 + LONG + INT + 2


def score(s: Sizes, params: dict, host: Host) -> Estimate:
    """The searchers of the last fit with their graphs, then rankings of all test documents, CHUNK at a time."""
    p, net = params["score"], trained(params)
    untrained = "embed" in params  # rows of BM25 and of the pretrained encoder
    zero_shot = embedder(params) if untrained else beside(params)
    fewer, exact = _fewer(net), params["index"]["search"] == "exact"
    labels, all_docs = FLOAT * s.labels * net.dim, FLOAT * s.docs * net.dim
    count = 2 * s.labels + s.docs
    per_doc = s.positives / max(1, s.docs)
    found = p["neighbours"] * per_doc * 0.6  # different labels of a document's neighbours

    def shortlists(docs: float) -> list[Part]:
        pairs = docs * (2 * p["shortlist"] + min(p["shortlist"], found))
        return [
            Part("shortlists", 88 * pairs, f"lower score.shortlist ({p['shortlist']})"),
            Part("memory", 40 * docs * found, f"lower score.neighbours ({p['neighbours']})"),
        ]

    held = min(s.validation, p["fusion_docs"])
    kept = [
        Part("interpreter", BASE + TRANSFORMERS),
        Part("positives", 2 * (INT + FLOAT) * s.positives + LONG * (s.docs + s.labels)),
    ]
    scores = Part("scores", FLOAT * min(max(held, s.test) * max(s.labels, s.docs), SCORES))
    graphs = 0.0 if exact else count * _graph_bytes(net.dim, params["index"]["m"])
    final = [
        Part("graphs", graphs, f"lower index.m ({params['index']['m']})"),
        Part("vectors", 4 * labels + all_docs, mapped=True),
        Part("pretrained encoder", zero_shot.weights, mapped=True),
        Part("encoders", 3 * net.weights),
        Part("rankings", LONG * ROWS * DEPTH * s.test, "take fewer test documents"),
    ]
    chunk = min(CHUNK, s.test)
    passes = zero_shot.forward(s.test, s.test_tokens, host.threads, 1024)
    queries = Part("queries", FLOAT * s.test * net.dim + 12 * DEPTH * s.test, fewer)
    moments = [
        [
            Part("vectors", 2 * labels + all_docs, mapped=True),
            Part("documents of the first fit", all_docs, fewer),
            Part("encoder", 2 * net.weights),
            scores,
            *shortlists(held),
        ],
        [*final, Part("words that documents and labels share", untrained * _bm25_bytes(s))],
        [*final, queries, scores, Part("activations", passes)],
        [*final, *shortlists(chunk), *([scores] if exact else [])],
        [*final, Part("rows of labels.csv", 700 * s.labels)],
    ]
    searches = s.test * (2 * s.labels * (2 * net.dim + zero_shot.dim)) + 2 * held * count * net.dim
    words = untrained * (1e-8 * s.test * s.labels + 1e-7 * s.label_tokens)
    looked = _search_time(p["ef"], params["index"]["m"], max(s.labels, s.docs), net.dim) / host.threads
    flops, _ = zero_shot.work(s.test, s.test_tokens, train=False)
    seconds = 8 + words + (searches + flops) / host.speed + s.test * (3 * looked + 1e-3) + 5e-5 * held * p["shortlist"]
    return Estimate("score", _fullest(kept, moments), seconds + 20e-6 * s.labels, 90 * s.labels)


def _bm25_bytes(s: Sizes) -> float:
    """Bytes of BM25: while the tokens are weighted, or of scores at full width and of those (a quarter) above 0."""
    scores = min(s.test * s.labels, max(SHARED, s.labels))
    return max(45 * s.label_tokens, (FLOAT + FLOAT) * s.label_tokens + (FLOAT + 21 / 4) * scores)


def unified(s: Sizes, params: dict, host: Host) -> Estimate:
    """UniDEC: encoder and heads with their moments, a classifier per label, and a step over one pool of labels."""
    p, net, other = params["train"], trained(params), beside(params)
    known = int(p["pretrained"] > 0)
    texts = round(params["gandalf"]["labels"] * s.labels)
    points, fewer = s.docs + texts, _fewer(net)
    count = min(p["batch_size"], points)
    pool = _distinct(count * (min(params["beta"], s.positives / max(1, s.docs)) + params["eta"]), s.labels)
    tokens = count * s.doc_tokens / max(1, s.docs) + pool * s.label_tokens / max(1, s.labels)
    batch = f"lower train.batch_size ({p['batch_size']})"
    directions = 1 + p["symmetric"] + (0 if p["classifier_loss"] == "none" else 1 + p["classifier_symmetric"])
    table = FLOAT * s.labels * net.dim / 2 if p["classifier_loss"] != "none" else 0.0
    kept = [
        Part("interpreter", BASE + (TRANSFORMERS if net.kind == "transformer" else TOKENIZER)),
        Part("tokens and positives", INT * (s.doc_tokens + s.label_tokens + s.positives), mapped=True),
        Part("pairs and offsets", LONG * (2 * points + s.labels) + 20 * s.filtered + 3 * INT * s.labels),
        Part("mined negatives", points * params["eta"] * p["refresh"] * INT + 3 * LONG * s.positives, "lower eta"),
        Part("pretrained vectors", FLOAT * (s.docs + s.labels) * other.dim, mapped=True),
        Part("places of known texts", known * (INT * (s.doc_tokens + s.label_tokens) + 5 * LONG * (s.docs + s.labels))),
        Part("encoder, moments and best epoch", 4 * net.weights, _smaller(net, p)),
        Part("classifiers, moments and best epoch", 4 * table, fewer),
    ]
    vectors = FLOAT * s.labels * net.dim
    moments = [
        [
            Part("batch", net.step(count + pool, tokens), batch),
            Part("scores", HOLES * directions * FLOAT * min(count * pool, STEP_SCORES), batch),
        ],
        [
            Part("label vectors", 3 * vectors, fewer),
            Part("scores", FLOAT * min(s.validation * s.labels, SCORES)),
            Part("validation documents", FLOAT * s.validation * net.dim, "lower prepare.validation"),
        ],
        [
            Part("documents and labels", FLOAT * (3 * points + 3 * s.labels) * net.dim, fewer),
            Part("scores", FLOAT * min(points * s.labels, SCORES)),
            *_clustering(points, points, net.dim, host),
        ],
    ]
    flops, moved = net.work(count + pool, tokens, train=True)
    scores = 3 * directions * count * pool
    step = (flops + scores * net.dim) / host.speed + (moved + 2 * FLOAT * scores) / BANDWIDTH + 2e-3
    refreshes = p["epochs"] / p["refresh"]
    once = _clustering_time(points, points // count, net.dim) + 2 * points * s.labels * net.dim / host.speed
    seconds = 5 + _folds(s) * (p["epochs"] * points / count * step + refreshes * once)
    seconds += p["epochs"] * _validation_time(s, net, host)
    disk = _folds(s) * (net.weights + 2 * vectors + FLOAT * s.docs * net.dim)
    return Estimate("train", _fullest(kept, moments), seconds, disk)


def _fullest(kept: list[Part], moments: list[list[Part]]) -> list[Part]:
    """The parts of the fullest moment."""
    return kept + max(moments, key=lambda parts: sum(part.bytes for part in parts))


def _scores(loss: str, docs: float, pool: float) -> float:
    """Bytes of a step's scores: a chunk of them, or where the hardest are looked for all of them, five times."""
    if loss in ("triplet", "contrastive", "pairwise"):
        return HOLES * 5 * FLOAT * docs * pool
    return HOLES * FLOAT * min(docs * pool, max(STEP_SCORES, docs))


def _distinct(drawn: float, labels: int) -> float:
    """Different labels among that many drawn."""
    return labels * (1 - exp(-drawn / max(1, labels)))


def _fewer(net: Network) -> str:
    if net.by == "train.model":
        return f"lower train.dim ({net.dim} dimensions in all)"
    if net.by.endswith(".hidden"):
        return f"lower {net.by} ({net.dim // 2})"
    return f"choose an {net.by} of fewer dimensions than {net.dim}"


def _smaller(net: Network, p: dict) -> str:
    return f"lower {net.by.split('.')[0]}.buckets ({p['buckets']})" if net.ngrams > 1 else _fewer(net)


def _folds(s: Sizes) -> int:
    return 2 if s.refit else 1


def _validation_time(s: Sizes, net: Network, host: Host) -> float:
    texts, tokens = s.labels + s.validation, s.label_tokens + s.validation * s.doc_tokens / max(1, s.docs)
    flops, moved = net.work(min(texts, TEXTS), tokens * min(1, TEXTS / max(1, texts)), train=False)
    passes = max(1, texts / TEXTS) * (flops / host.speed + moved / BANDWIDTH)
    return passes + 2 * s.validation * s.labels * net.dim / host.speed + 2 * FLOAT * s.validation * s.labels / BANDWIDTH


STAGES: dict[str, Callable[[Sizes, dict, Host], Estimate]] = {
    "prepare": prepare,
    "embed": embed,
    "gandalf": gandalf,
    "cluster": cluster,
    "encoder": encoder,
    "augment": augment,
    "classifier": classifier,
    "index": index,
    "score": score,
}
UNIFIED = {"gandalf": gandalf, "train": unified, "index": index, "score": score}  # of unidec/params.yaml
# Stages that work on another device than the CPU where there is one; score does so for a part.
ON_DEVICE = ("embed", "encoder", "augment", "classifier", "train", "score")


# --- at a stage's door ------------------------------------------------------------------------------------------------


def prepared(train: Path, labels: Path | int, test: Path | None = None) -> Sizes:
    """The sizes of prepared data; only the arrays' headers and a few numbers are read.

    labels  the folder of the labels, or their number where a stage does not read it
    """
    tokens, positives = (artifacts.load_ragged(artifacts.check(train), name) for name in ("tokens", "positives"))
    sizes = {"docs": len(tokens), "doc_tokens": len(tokens.values), "positives": len(positives.values)}
    sizes["validation"] = int(artifacts.load_array(train, "is_validation").sum())
    sizes["filtered"] = len(artifacts.load_array(train, "filter"))
    if isinstance(labels, int):
        sizes["labels"] = labels
    else:
        tokens = artifacts.load_ragged(artifacts.check(labels), "tokens")
        sizes |= {"labels": len(tokens), "label_tokens": len(tokens.values)}
    if test is not None:
        tokens = artifacts.load_ragged(artifacts.check(test), "tokens")
        sizes |= {"test": len(tokens), "test_tokens": len(tokens.values)}
    return Sizes(**sizes, refit=artifacts.load_json(train, "meta.json")["refit"])


def rows(folder: Path, name: str) -> int:
    """The rows of an array that each fit has one of."""
    return len(artifacts.load_array(artifacts.check(folder) / CHOOSE, name))


def host() -> Host:
    return Host(*runtime.strength())


def announce(stage: str, sizes: Sizes, file: Path = Path("params.yaml")) -> None:
    """Say what the stage will take, or refuse when this machine cannot hold it.

    On another device than the CPU batches, activations and scores are not in the machine's memory: no stage that works
    there is refused.
    """
    params = load_all(file=file)
    estimate = (UNIFIED if "train" in params else STAGES)[stage](sizes, params, host())
    device = runtime.device()
    if device.type != "cpu" and stage in ON_DEVICE:
        console.say(f"{estimate.line()}; that is of a run on the CPU, and this one is on {device}")
        return
    refusal = estimate.refusal(runtime.memory())
    if refusal:
        raise UserError(refusal)
    console.say(estimate.line())
