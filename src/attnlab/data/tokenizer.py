"""`Tokenizer`: text to numbers of tokens, by the tokenizer.json of a pretrained model or a vocabulary of words."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import flag, instance, shown, whole, whole_array
from attnlab.data.hub import EXTRA, model_folder
from attnlab.data.sequences import Sequences
from attnlab.errors import InputError, message

if TYPE_CHECKING:
    from attnlab.data.texts import Texts

PAD, UNKNOWN, FIRST, SEPARATOR = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
# What padding is called, in the order in which it is looked for; GPT-2 has none, and its end of text will do.
PADS = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")
# Where a text is cut is a state of the library's tokenizer, which threads share.
ONE_AT_A_TIME = threading.Lock()
# Tables of tokens are often filled up to a multiple of this.
ROUNDED_TO = 128
LONGEST = 10**6


class Encoded(NamedTuple):
    """Texts as numbers."""

    ids: NDArray[np.intp]  # (n, T)
    lengths: NDArray[np.intp]  # (n,)
    segments: NDArray[np.intp]  # (n, T) of which text of a pair a token is
    truncated: int  # texts that were cut


class Tokenizer:
    """Cuts text into tokens and numbers them.

    >>> tokenizer = Tokenizer.of_words(["good", "bad", "film"])
    >>> tokenizer.tokens(tokenizer.encode(["Good film"]).ids)[0]
    ['[CLS]', 'good', 'film', '[SEP]']
    """

    def __init__(self, inner: Any, source: str) -> None:
        self._inner = inner  # a tokenizers.Tokenizer of our own, without truncation and padding
        self.source = source
        self._inner.no_padding()
        self._inner.no_truncation()
        known = self._inner.get_vocab(with_added_tokens=True)
        self.vocabulary: int = max(known.values()) + 1
        self.pad: int = next((known[name] for name in PADS if name in known), 0)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """That of a model: the tokenizer.json of a folder, or of a name on the Hugging Face hub."""
        place = model_folder(folder)
        path = place / "tokenizer.json"
        if not path.is_file():
            hint = "with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it"
            raise InputError(message(f"`{place}` has no tokenizer.json.", hint))
        try:
            text = path.read_text(encoding="utf-8")
            return cls(_tokenizers().Tokenizer.from_str(text), str(place))
        except InputError:
            raise
        except Exception as error:  # of the reader: JSON that is no tokenizer, a kind that it does not know
            why = " ".join(str(error).split())[:200]
            raise InputError(message(f"`{path}` is no tokenizer ({why}).", "download it again")) from error

    @classmethod
    def of_words(cls, words: Iterable[str], *, lower: bool = True) -> Tokenizer:
        """A WordPiece tokenizer that knows these words, and every other one as [UNK]; made in memory.

        Args:
            words: each once; punctuation marks are words of their own.
            lower: are texts put into lower case?
        """
        lower = flag("lower", lower)
        given = list(words) if hasattr(words, "__iter__") and not isinstance(words, str) else [None]
        if not all(isinstance(word, str) and word and _is_unicode(word) for word in given):
            raise InputError(message(f"`words` is {shown(words)}; wanted words as text.", "['good', 'bad']"))
        every = dict.fromkeys([PAD, UNKNOWN, FIRST, SEPARATOR, *given])
        known = {word: number for number, word in enumerate(every)}
        library = _tokenizers()
        inner = library.Tokenizer(library.models.WordPiece(known, unk_token=UNKNOWN))
        inner.normalizer = library.normalizers.BertNormalizer(lowercase=lower)
        inner.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        inner.post_processor = library.processors.TemplateProcessing(
            single=f"{FIRST} $A {SEPARATOR}",
            pair=f"{FIRST} $A {SEPARATOR} $B:1 {SEPARATOR}:1",
            special_tokens=[(FIRST, known[FIRST]), (SEPARATOR, known[SEPARATOR])],
        )
        inner.add_special_tokens([PAD, UNKNOWN, FIRST, SEPARATOR])
        return cls(inner, "words")

    @classmethod
    def of_texts(cls, texts: Texts, *, most: int = 30_000, lower: bool = True) -> Tokenizer:
        """A tokenizer of the words of these texts, the most frequent ones first.

        >>> import attnlab as al
        >>> Tokenizer.of_texts(al.data.made_up_texts(50, seed=0)).vocabulary > 20
        True
        """
        from attnlab.data.texts import Texts  # which imports this module

        texts = instance("texts", texts, Texts, "al.data.Texts", "al.data.read_texts(path)")
        library, most = _tokenizers(), whole("most", most)
        normalize = library.normalizers.BertNormalizer(lowercase=flag("lower", lower)).normalize_str
        cut = library.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
        counts: Counter[str] = Counter()
        for text in (*texts.texts, *(texts.pairs or ())):
            counts.update(word for word, _ in cut(normalize(text)))
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls.of_words(ordered[:most], lower=lower)

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, length: int | None = None) -> Encoded:
        """Numbers of the tokens of texts, or of pairs of texts, filled up to one length.

        Args:
            texts, pairs: as many of both, where there are pairs.
            length: of all sequences; longer ones are cut, the longer text of a pair first. None for the longest.
        """
        several = pairs is not None
        special = self._inner.num_special_tokens_to_add(several)
        if length is not None:
            length = whole("length", length, special + 1 + several, LONGEST)
        with ONE_AT_A_TIME:
            try:
                every = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
                if length is not None:
                    self._inner.enable_truncation(length)
                rows = self._inner.encode_batch(every)
            except InputError:
                raise
            except Exception as error:  # of the library, which knows only its own kinds of input
                raise InputError(message(f"`texts` cannot be encoded ({error}); wanted texts.")) from error
            finally:
                self._inner.no_truncation()
        lengths = np.array([len(row.ids) for row in rows], dtype=np.intp)
        if not len(rows) or lengths.min() < 1:
            which = int(lengths.argmin()) if len(rows) else 0
            raise InputError(message(f"`texts` has no token at number {which}.", "leave empty texts out"))
        T = int(lengths.max()) if length is None else length
        ids, segments = np.full((len(rows), T), self.pad, dtype=np.intp), np.zeros((len(rows), T), dtype=np.intp)
        for i, row in enumerate(rows):
            ids[i, : lengths[i]] = row.ids
            segments[i, : lengths[i]] = row.type_ids
        return Encoded(ids, lengths, segments, sum(bool(row.overflowing) for row in rows))

    def tokens(self, ids: ArrayLike) -> list[Any]:
        """The tokens of these numbers as text, in lists as the numbers are."""
        numbers = whole_array("ids", ids, "numbers of tokens")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.vocabulary):
            worst = numbers.min() if numbers.min() < 0 else numbers.max()
            raise InputError(message(f"`ids` holds {worst}; wanted numbers from 0 to {self.vocabulary - 1}."))
        names = np.array([self._inner.id_to_token(int(one)) or "" for one in numbers.ravel()], dtype=object)
        return names.reshape(numbers.shape).tolist()

    def __repr__(self) -> str:
        return f"Tokenizer({self.source}, vocabulary={self.vocabulary})"


def check_vocabulary(name: str, data: Sequences, vocabulary: int) -> None:
    """Refuse data of a tokenizer that does not go with a table of so many tokens."""
    assert data.ids is not None
    known = data.info.get("vocabulary")
    hint = "al.data.Tokenizer.load(folder), of the folder of the weights"
    if isinstance(known, int) and not 0 <= vocabulary - known < ROUNDED_TO:
        problem = f"`{name}` is of a tokenizer of {known} tokens; the weights are of {vocabulary}: they do not match."
        raise InputError(message(problem, hint))
    largest = int(data.ids.max())
    if largest >= vocabulary:
        raise InputError(message(f"`{name}` has the token {largest}; the weights know {vocabulary} tokens.", hint))


def _is_unicode(text: str) -> bool:
    """Half of a surrogate pair is text to Python, and to nobody else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tokenizers() -> Any:
    if find_spec("tokenizers") is None:
        raise InputError(message("Cutting text into tokens needs the library tokenizers.", EXTRA))
    import tokenizers

    return tokenizers
