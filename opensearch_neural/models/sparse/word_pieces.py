"""Word-piece tokenizers trained on a corpus, for machines that cannot download a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000
"""Word pieces consist of this many characters, the most frequent ones, as in BERT."""


def train_word_pieces(texts: Iterable[str], vocabulary: int = 30_522, special: Sequence[str] = SPECIAL) -> Tokenizer:
    """A word-piece tokenizer with BERT's normalization (lower case, accents stripped); equal texts give an equal tokenizer.

    The trainer numbers the characters within words in the order of a randomly seeded hash table, and breaks ties between
    merges by these numbers. So the characters are given as special tokens, which are numbered first, in a fixed order.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = Counter[str]()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    alphabet = sorted(sorted(characters), key=lambda character: -characters[character])[:ALPHABET]
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator(
        (" ".join([word] * count) for word, count in sorted(words.items())),
        trainers.WordPieceTrainer(
            vocab_size=vocabulary,
            min_frequency=2,
            special_tokens=[*special, *(f"##{character}" for character in alphabet)],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    # The trained tokenizer would split words at its special tokens, the characters; a new one does not.
    tokenizer = Tokenizer(models.WordPiece(trained.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.add_special_tokens(list(special))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    ends = [(token, trained.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer
