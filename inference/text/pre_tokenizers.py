"""How byte-level vocabularies cut text before merging, by the name that a GGUF file gives.

A GGUF file holds no rule, only a name (`tokenizer.ggml.pre`) for the rule of the model family's
own tokenizer. The patterns are those that the families publish in their tokenizer.json.
"""

import logging
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

logger = logging.getLogger(__name__)

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_A = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_B = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SIGNS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED_A}|{_CASED_B}|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CASED_A}{_CONTRACTION}?|{_CASED_B}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}"
)
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3_WORDS = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SEED = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SIGN_RUNS = r"[\p{P}\$\+<=>\^~\|`]+"
# DeepSeek's first models list the letters that have a case.
_DEEPSEEK_LETTERS = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """One family's rule.

    Attributes:
        patterns: Each cuts the pieces of the one before; what matches stands alone.
        ignores_merges: Whether a piece that is in the vocabulary is taken whole, without merging.
        adds_bos: Whether prompts begin with BOS where the file does not say.
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False


_RULES: dict[str, PreTokenizerRule] = {
    "gpt-2": PreTokenizerRule((_GPT2,)),
    "default": PreTokenizerRule((_SIGN_RUNS.replace("`", ""), _GPT2, r"\p{N}+", "[0-9]{3}")),
    "smollm": PreTokenizerRule((r"\p{N}", _GPT2)),
    "llama-bpe": PreTokenizerRule((_LLAMA3,), ignores_merges=True, adds_bos=True),
    "dbrx": PreTokenizerRule((_LLAMA3,)),
    "qwen2": PreTokenizerRule((_QWEN2,)),
    "qwen35": PreTokenizerRule((_QWEN35,)),
    "tekken": PreTokenizerRule((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizerRule((_GPT4O,)),
    "deepseek-llm": PreTokenizerRule(
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizerRule(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
    ),
    "deepseek-v3": PreTokenizerRule((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS)),
    "seed-coder": PreTokenizerRule((_SEED,)),
    "bailingmoe": PreTokenizerRule((_BAILING,)),
    "bloom": PreTokenizerRule((_BLOOM,)),
    "viking": PreTokenizerRule((_BLOOM, r"\p{N}")),
    "falcon": PreTokenizerRule((_SIGN_RUNS, _GPT2, "[0-9]{3}")),
}

# Families that share another's rule.
_SAME_AS: dict[str, tuple[str, ...]] = {
    "gpt-2": (
        *("gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"),
        *("gigachat", "a.x-4.0", "mellum", "roberta-bpe", "jina-v2-code", "modern-bert"),
    ),
    "smollm": (
        *("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "dbrx": ("smaug-bpe", "glm4", "chatglm-bpe"),
    "qwen2": (
        *("stablelm2", "deepseek-r1-qwen", "kormo", "megrez", "hunyuan", "solar-open", "grok-2"),
    ),
    "gpt-4o": ("llama4", "kanana2", "minimax-m2"),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm"),
    "bailingmoe": ("bailingmoe2", "llada-moe"),
    "bloom": ("poro-chat", "gpt3-finnish"),
}
_RULES |= {alias: _RULES[name] for name, aliases in _SAME_AS.items() for alias in aliases}

FALLBACK = "llama-bpe"


def find_rule(name: str) -> PreTokenizerRule:
    """The rule with that name.

    An unknown name gets the cuts of Llama 3, which most newer families resemble: texts are then
    cut in nearly the same places, so the model works, now and then with other tokens than it was
    trained on. A warning in the log says so.
    """
    rule = _RULES.get(name)
    if rule is None:
        logger.warning("Unknown pre-tokenizer %r; the one of %s is used.", name, FALLBACK)
        return PreTokenizerRule(_RULES[FALLBACK].patterns)
    return rule


def build_pre_tokenizer(rule: PreTokenizerRule) -> pre_tokenizers.PreTokenizer:
    """The cutting and the change into the byte alphabet, as one step of `tokenizers`."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
