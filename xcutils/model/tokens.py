"""Texts as token ids: no padding and no special tokens, which are added when a batch is made."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, starts

TOKENISED = 4096  # texts tokenised at once: enough for every core, little memory


def load_tokenizer(name: str) -> Tokenizer:
    """The fast tokenizer of a local folder or a named model, set to neither pad nor cut."""
    from xcutils.model.checkpoints import checkpoint_folder  # imports torch, which predictions do without

    file = Path(checkpoint_folder(name)) / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{file} is missing: give a folder or a model that has a fast tokenizer (tokenizer.json).")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file} cannot be read as a fast tokenizer ({reason}): fetch it again.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids put before ("cls") and after ("sep") a text: [CLS] and [SEP] of BERT, <s> and </s> of RoBERTa."""
    ids = tokenizer.encode("", add_special_tokens=True).ids
    if len(ids) != 2:
        raise UserError(
            f"The tokenizer puts {len(ids)} special tokens around a text, not one before and one after it: "
            "choose a BERT- or RoBERTa-style model."
        )
    return {"cls": ids[0], "sep": ids[1]}


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of what the tokenizer does not know: [UNK] of BERT, <unk> of RoBERTa; None when it has none."""
    return next((i for name in ("[UNK]", "<unk>") if (i := tokenizer.token_to_id(name)) is not None), None)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> Ragged:
    """Rows of int32 token ids, at most max_tokens - 2 each: two special tokens are added later; a row may be empty."""
    values: list[np.ndarray] = [np.zeros(0, dtype=np.int32)]
    lengths = np.zeros(len(texts), dtype=np.int64)
    for first in range(0, len(texts), TOKENISED):
        encoded = tokenizer.encode_batch_fast(list(texts[first : first + TOKENISED]), add_special_tokens=False)
        rows = [np.array(encoding.ids[: max_tokens - 2], dtype=np.int32) for encoding in encoded]
        lengths[first : first + len(rows)] = [len(row) for row in rows]
        values.append(np.concatenate(rows))
    return Ragged(np.concatenate(values), starts(lengths))


def fill_empty(tokens: Ragged, tokenizer: Tokenizer) -> Ragged:
    """The rows, with the unknown token in empty ones: a label without text still has a vector to start from."""
    unknown = unknown_id(tokenizer)
    filler = special_ids(tokenizer)["sep"] if unknown is None else unknown
    lengths = np.maximum(tokens.lengths, 1)
    values = np.full(lengths.sum(), filler, dtype=np.int32)
    offsets = starts(lengths)
    places = np.arange(len(tokens.values)) + np.repeat(offsets[:-1] - tokens.offsets[:-1], tokens.lengths)
    values[places] = tokens.values
    return Ragged(values, offsets)


def check_vocabulary(folder: Path, checkpoint: str, where: str) -> None:
    """Refuse a checkpoint whose tokens are not those of the prepared texts: its vectors would mean other words."""
    prepared = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    if load_tokenizer(checkpoint).get_vocab() != prepared:
        raise UserError(
            f"{where} is {checkpoint}, whose vocabulary is not the one the texts were tokenised with: set "
            f"prepare.tokenizer and {where} to models of one vocabulary."
        )
