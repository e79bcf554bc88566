"""Kubernetes quantities: the one field type that may be written as an integer or as a string."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from ballonet.api.quoting import quoted

PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[A-Za-z]*))"
)
_SUFFIXES: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    **{
        suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m"), start=-3)
    },
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse_quantity(text: str | int) -> Decimal:
    """Return the value of a Kubernetes quantity such as ``61Gi``, ``500m`` or ``1e9``.

    Raises:
        ValueError: the text is no quantity; the message holds the text and an example.
    """
    value = str(text)
    match = _QUANTITY.fullmatch(value) if len(value) <= 32 else None
    if match is None:
        raise ValueError(f"{quoted(value)} is not a quantity: write for example 8Gi or 8589934592")
    number = Decimal(match["number"])
    if match["exponent"]:
        return number * Decimal(10) ** int(match["exponent"])
    suffix = match["suffix"] or ""
    if suffix not in _SUFFIXES:
        raise ValueError(
            f"{quoted(value)} has an unknown suffix {suffix!r}: write for example 8Gi or 8G"
        )
    return number * _SUFFIXES[suffix]


def quantity_bytes(text: str | int) -> int:
    """Return a memory quantity in whole bytes, rounded up as the API server does.

    Raises:
        ValueError: the text is no quantity, or is not positive.
    """
    value = parse_quantity(text)
    if value <= 0:
        raise ValueError(f"{quoted(text)} must be more than zero: write for example 8Gi")
    whole = int(value)
    return whole if whole == value else whole + 1


MAX_MEMORY_BYTES: Final = 2**53  # 8Pi


def _memory(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{quoted(value)} is not a quantity: write for example 8Gi or 8589934592")
    if quantity_bytes(value) > MAX_MEMORY_BYTES:
        raise ValueError(f"{quoted(value)} is more memory than any machine has (over 8 PiB)")
    return value


# The user's own text is kept: writing "1024Mi" back as "1Gi" would show as drift in GitOps tools.
MemoryQuantity = Annotated[
    str | int,
    BeforeValidator(_memory),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": PATTERN,
            "maxLength": 32,
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [
                {
                    "rule": f"type(self) == int ? self > 0 && self <= {MAX_MEMORY_BYTES} : "
                    "isQuantity(self) && quantity(self).isGreaterThan(quantity('0')) && "
                    "!quantity(self).isGreaterThan(quantity('8Pi'))",
                    "message": "must be a quantity above 0 and at most 8Pi, for example 8Gi",
                }
            ],
        }
    ),
]
