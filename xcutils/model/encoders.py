"""Text encoders with one face: ragged token ids in, one vector per text out (not normalised), any of the papers' kinds.

bag-of-embeddings  weighted sum of token and hashed n-gram vectors, started from a pretrained token table [Astec]
bi-gru             one bidirectional GRU layer over the same table, masked mean [AttentionXML]
transformer        any Hugging Face checkpoint, mean or CLS pooling, optionally fewer layers
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, starts
from xcutils.model.checkpoints import check_transformer, checkpoint_folder, weight_files
from xcutils.model.rows import RowTable

PAIR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # multiplicative hashing of n-grams


class BagOfEmbeddings(nn.Module):
    """Sum of the vectors of a text's tokens and n-grams, each times a learnt weight."""

    def __init__(self, vectors: Tensor, weights: Tensor, *, vocabulary: int, ngrams: int):
        super().__init__()
        self.vocabulary, self.ngrams, self.dim = vocabulary, ngrams, vectors.shape[1]
        self.vectors = RowTable(vectors, lr=0.0)
        self.weights = RowTable(weights, lr=0.0)
        self.tables = [self.vectors, self.weights]

    def forward(self, tokens: Ragged) -> Tensor:
        features = bag_features(tokens, self.vocabulary, self.ngrams, len(self.vectors.values))
        used, place = np.unique(features.values, return_inverse=True)
        device = self.vectors.values.device
        ids = torch.from_numpy(used).to(device)
        rows = self.vectors.rows(ids) * self.weights.rows(ids)
        place, offsets = torch.from_numpy(place).to(device), torch.from_numpy(features.offsets[:-1]).to(device)
        return F.embedding_bag(place, rows, offsets, mode="sum")

    def config(self) -> dict:
        return {"kind": "bag-of-embeddings", "vocabulary": self.vocabulary, "ngrams": self.ngrams}

    def state(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors.values, "weights": self.weights.values}


def bag_features(tokens: Ragged, vocabulary: int, ngrams: int, rows: int) -> Ragged:
    """The table rows of each text: its tokens, then its n-grams hashed into the rows behind the vocabulary."""
    values, owner = np.asarray(tokens.values, dtype=np.int64), tokens.row_ids()
    parts, owners = [values], [owner]
    key = values.astype(np.uint64)
    for n in range(2, ngrams + 1):
        if len(values) < n:
            break
        key = _mix(key[:-1]) + values[n - 1 :].astype(np.uint64)
        inside = owner[: len(key)] == owner[n - 1 :]
        parts.append((vocabulary + (_mix(key) >> SHIFT) % np.uint64(rows - vocabulary)).astype(np.int64)[inside])
        owners.append(owner[: len(key)][inside])
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Ragged(np.concatenate(parts)[order], starts(np.bincount(owner, minlength=len(tokens))))


def _mix(key: np.ndarray) -> np.ndarray:
    key = (key + np.uint64(1)) * PAIR
    return key ^ (key >> SHIFT)


class BiGRU(nn.Module):
    """Masked mean of a one-layer bidirectional GRU's states."""

    def __init__(self, vectors: Tensor, *, hidden: int, dropout: float):
        super().__init__()
        self.hidden, self.dropout, self.dim = hidden, dropout, 2 * hidden
        self.vectors = RowTable(vectors, lr=0.0)
        self.tables = [self.vectors]
        self.gru = nn.GRU(vectors.shape[1], hidden, batch_first=True, bidirectional=True)

    def forward(self, tokens: Ragged) -> Tensor:
        used, place = np.unique(tokens.values, return_inverse=True)
        device = self.vectors.values.device
        rows = self.vectors.rows(torch.from_numpy(used.astype(np.int64)).to(device))
        zero = torch.zeros((1, rows.shape[1]), dtype=rows.dtype, device=device)  # an empty text is one zero vector
        rows = F.dropout(torch.cat([rows, zero]), self.dropout, self.training)
        ragged = Ragged(place, tokens.offsets)
        return _by_length(ragged, len(used), lambda ids, mask: self._pool(rows, ids, mask), device)

    def _pool(self, rows: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        lengths = mask.sum(dim=1).clamp(min=1)
        padded = rows.index_select(0, ids.flatten()).unflatten(0, ids.shape)
        packed = nn.utils.rnn.pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with mixed_precision(lengths.device):
            out = self.gru(packed)[0]
        states = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].float()
        return F.dropout(states.sum(dim=1) / lengths.unsqueeze(1), self.dropout, self.training)

    def config(self) -> dict:
        return {"kind": "bi-gru", "hidden": self.hidden, "dropout": self.dropout}

    def state(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors.values, **{f"gru.{k}": v for k, v in self.gru.state_dict().items()}}


class Transformer(nn.Module):
    """A Hugging Face encoder with mean or CLS pooling."""

    def __init__(self, model: nn.Module, *, pooling: str, cls: int, sep: int):
        super().__init__()
        self.model, self.pooling, self.cls, self.sep = model, pooling, cls, sep
        self.dim, self.tables = model.config.hidden_size, []

    def forward(self, tokens: Ragged) -> Tensor:
        framed = _frame(tokens, self.cls, self.sep)
        return _by_length(framed, 0, self._pool, next(self.model.parameters()).device)

    def _pool(self, ids: Tensor, mask: Tensor) -> Tensor:
        with mixed_precision(ids.device):
            states = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        states = states.float()
        if self.pooling == "cls":
            return states[:, 0]
        mask = mask.unsqueeze(2).to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def config(self) -> dict:
        model = self.model.config.to_dict()
        return {"kind": "transformer", "pooling": self.pooling, "cls": self.cls, "sep": self.sep, "model": model}

    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict()


def mixed_precision(device: torch.device):
    """bfloat16 on a GPU that has it, nothing elsewhere; pooling, norms and losses outside it stay in float32."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def _frame(tokens: Ragged, first: int, last: int) -> Ragged:
    """The rows with the special tokens put around them."""
    values = np.empty(len(tokens.values) + 2 * len(tokens), dtype=np.int64)
    offsets = tokens.offsets + 2 * np.arange(len(tokens) + 1)
    values[offsets[:-1]], values[offsets[1:] - 1] = first, last
    values[np.arange(len(tokens.values)) + 2 * tokens.row_ids() + 1] = tokens.values
    return Ragged(values, offsets)


def _by_length(
    tokens: Ragged, pad: int, encode: Callable[[Tensor, Tensor], Tensor], device, most: int = 4096
) -> Tensor:
    """(rows, D): `encode` applied to chunks of texts of like length, so that hardly anything is padding."""
    order = np.argsort(tokens.lengths, kind="stable")
    lengths = np.maximum(tokens.lengths[order], 1)
    parts, start = [], 0
    while start < len(order):
        stop = start + 1  # as many texts as fit into `most` padded tokens
        while stop < len(order) and int(lengths[stop]) * (stop + 1 - start) <= most:
            stop += 1
        chunk = tokens.take(order[start:stop])
        width = int(lengths[stop - 1])
        mask = np.arange(width) < chunk.lengths[:, None]
        ids = np.full(mask.shape, pad, dtype=np.int64)
        ids[mask] = chunk.values
        parts.append(encode(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)))
        start = stop
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
    return torch.cat(parts).index_select(0, back)


# --- building ---------------------------------------------------------------------------------------------------------


def token_table(checkpoint: str) -> Tensor:
    """(V, D) float: a checkpoint's token vectors, mean-centred and of length one."""
    for file in weight_files(checkpoint):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():
                if key.endswith(("word_embeddings.weight", "embed_tokens.weight", "tok_embeddings.weight")):
                    table = tensors.get_tensor(key).float()
                    return F.normalize(table - table.mean(dim=0), dim=1)
    raise UserError(f"{checkpoint} has no token table in a safetensors file: name another checkpoint.")


def idf_weights(parts: Iterable[Ragged], rows: int) -> Tensor:
    """(rows, 1) float: ln((n + 1) / (df + 1)) of each table row over these texts, scaled to mean 1 over what occurs.

    parts  the features of some texts each, so that those of all need not stand in memory together
    """
    count, frequency = 0, np.zeros(rows, dtype=np.int64)
    for features in parts:
        seen = np.unique(features.row_ids() * np.int64(rows) + features.values) % rows
        count, frequency = count + len(features), frequency + np.bincount(seen, minlength=rows)
    weights = np.log((count + 1) / (frequency + 1))
    weights /= max(weights[frequency > 0].mean(), 1e-6)  # texts that all share every word have no rare one
    return torch.from_numpy(weights).float().unsqueeze(1)


def build_bag(texts: Iterable[Ragged], checkpoint: str, *, ngrams: int, buckets: int) -> BagOfEmbeddings:
    """A bag-of-embeddings encoder: pretrained token vectors, zero n-gram vectors, weights by inverse frequency."""
    table = token_table(checkpoint)
    rows = len(table) + (buckets if ngrams > 1 else 0)
    vectors = torch.cat([table, torch.zeros(rows - len(table), table.shape[1])])
    chunks = (tokens.take(some) for tokens in texts for some in _chunks(len(tokens)))
    weights = idf_weights((bag_features(chunk, len(table), ngrams, rows) for chunk in chunks), rows)
    return BagOfEmbeddings(vectors, weights, vocabulary=len(table), ngrams=ngrams)


def _chunks(count: int, size: int = 1 << 16) -> Iterator[np.ndarray]:
    """0 .. count - 1 in pieces."""
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


def build_transformer(checkpoint: str, special: dict, *, pooling: str, layers: int, dropout: float) -> Transformer:
    """The checkpoint as an encoder; `layers` > 0 keeps that many layers, spread evenly, the last one among them."""
    from transformers import AutoModel  # slow to import: only where it is used
    from transformers.utils import logging

    check_transformer(checkpoint, layers, special.get("max_tokens", 0))
    weight_files(checkpoint)
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(
        checkpoint_folder(checkpoint), trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, dropout)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
    if layers > 0:
        _keep_layers(model, layers, checkpoint)
    # from_pretrained leaves the model in evaluation mode, in which nothing would be dropped while training
    return Transformer(model, pooling=pooling, cls=special["cls"], sep=special["sep"]).train()


def _keep_layers(model: nn.Module, layers: int, checkpoint: str) -> None:
    for part in model.modules():
        stack = getattr(part, "layer", None)
        if isinstance(stack, nn.ModuleList):
            if layers > len(stack):
                raise UserError(f"{checkpoint} has {len(stack)} layers, not {layers}: lower `layers`.")
            kept = [round((i + 1) * len(stack) / layers) - 1 for i in range(layers)]
            part.layer = nn.ModuleList(stack[i] for i in kept)
            break
    else:
        raise UserError(f"the layers of {checkpoint} could not be found: set `layers` to 0 to keep them all.")
    for name in ("num_hidden_layers", "n_layers"):
        if name in model.config.to_dict():
            setattr(model.config, name, layers)


# --- artifacts --------------------------------------------------------------------------------------------------------


def rebuild(config: dict, tensors: dict[str, np.ndarray]) -> nn.Module:
    """The encoder that `config()` and `state()` described."""
    state = {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}
    if config["kind"] == "bag-of-embeddings":
        return BagOfEmbeddings(
            state["vectors"], state["weights"], vocabulary=config["vocabulary"], ngrams=config["ngrams"]
        )
    if config["kind"] == "bi-gru":
        encoder = BiGRU(state.pop("vectors"), hidden=config["hidden"], dropout=config["dropout"])
        encoder.gru.load_state_dict({name.removeprefix("gru."): tensor for name, tensor in state.items()})
        return encoder
    from transformers import AutoConfig, AutoModel

    settings = dict(config["model"])
    model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    model.load_state_dict(state)
    return Transformer(model, pooling=config["pooling"], cls=config["cls"], sep=config["sep"])


def encode(
    encoder: nn.Module, tokens: Ragged, *, normalise: bool = True, chunk: int = 4096, watch: Callable = iter
) -> np.ndarray:
    """(rows, D) float32: the embeddings of all texts, of length one by default, in chunks without gradients."""
    return encode_sets(encoder, {"texts": tokens}, normalise=normalise, chunk=chunk, watch=watch)["texts"]


class InMemory:
    """Rows that are filled chunk by chunk; scratch.Rows is its like for work that may be interrupted."""

    def __init__(self, name: str, shape: tuple[int, int]):
        self.array, self.done = np.zeros(shape, dtype=np.float32), set()

    def fill(self, start: int, stop: int, rows: np.ndarray) -> None:
        self.array[start:stop] = rows


def encode_sets(
    encoder: nn.Module,
    sets: dict[str, Ragged],
    *,
    normalise: bool = True,
    chunk: int = 4096,
    watch: Callable = iter,
    into: Callable = InMemory,
) -> dict[str, np.ndarray]:
    """`encode` of several sets of texts in one go; no chunk spans two of them, so that each text's vector is the same.

    On a CPU the chunks run side by side on one thread each: no thread waits for another inside an operation.
    into  (name, shape) -> the rows to fill; chunks that are done already are left alone
    """
    out = {name: into(name, (len(tokens), encoder.dim)) for name, tokens in sets.items()}

    def fill(name: str, start: int, stop: int) -> None:
        with torch.no_grad():
            some = encoder(sets[name].take(np.arange(start, stop))).float()
            out[name].fill(start, stop, (F.normalize(some, dim=1) if normalise else some).cpu().numpy())

    was_training = encoder.training
    encoder.eval()
    todo = [
        (name, start, stop)
        for name, tokens in sets.items()
        for start, stop in ((i, min(i + chunk, len(tokens))) for i in range(0, len(tokens), chunk))
        if (start, stop) not in out[name].done
    ]
    with _one_thread_each() as workers, ThreadPoolExecutor(workers) as pool:
        try:
            for done in watch([pool.submit(fill, *part) for part in todo]):
                done.result()
        except BaseException:  # Ctrl-C among them: the chunks that have not begun are not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    encoder.train(was_training)
    return {name: rows.array for name, rows in out.items()}


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """The number of workers to use while every operation runs on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def move(encoder: nn.Module, device: torch.device) -> nn.Module:
    """The encoder with its parameters and tables on the device."""
    for table in encoder.tables:
        table.values = table.values.to(device)
    return encoder.to(device)
