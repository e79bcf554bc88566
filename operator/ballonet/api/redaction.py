"""Words of pods and of the API server without what may be a secret, before anybody reads them."""

from __future__ import annotations

import re
from typing import Final

# Values of anything that is called a token, key, password or secret never leave a log; counts of
# tokens and tokenizers do. Every name is looked at once and nothing is tried again (possessive
# quantifiers): a pod writes what it likes, and must not keep the operator busy with it.
_SENSITIVE: Final = (
    r"(?=[\w-]*(?:token(?!s|iz)|secret|passw(?:or)?d|passphrase|(?:api|access)[_-]?key"
    r"|[_-]key(?![\w-])|authorization|credential))"
)
_SCHEME: Final = r"(?:bearer|basic|digest|negotiate|token)"
# What begins like the tokens of hubs and clouds, or as a signed token does.
_BEGINNING: Final = r"(?:hf_|sk-|gh[a-z]_|github_pat_|glpat-|nvapi-|xox[a-z]-|eyJ)"
_SECRET: Final = re.compile(
    rf"(?i)(?<![\w-])({_SENSITIVE}[\w-]++[\\'\"]*+\s*+[=:]\s*+\\*+)"
    rf"(?:\[[^\]]*+|\([^)]*+|\"[^\"]*+|'[^']*+|(?:{_SCHEME}\s++)?[^\s'\",]++)"
    rf"|(?<![\w-])({_SENSITIVE}--[\w-]++\s++)(?!-)\S++"
    # Whoever has the signature of an address may read what it names.
    r"|(?<=[?&])((?:[\w-]{0,20}signature|sig)=)[^\s&'\"]++"
    # So does the API server repeat a value that is not of the kind that it must be.
    r"|(?<=valueUnstructured\{)(Value:)[^}]++"
    rf"|(?<![\w-]){_BEGINNING}[\w.-]{{8,}}+"
    r"|(?<=://)[^\s/@]++(?:@[^\s/@]++)*(?=@)"
)


def redact(text: str) -> str:
    """Return text without the values of what looks like a secret."""
    return _SECRET.sub(lambda match: f"{next(filter(None, match.groups()), '')}***", text)
