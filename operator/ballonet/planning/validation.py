"""Broken rules of the resource, told at the very element that breaks them.

The rules themselves stand in the resource (``RULES`` of its models). A rule over a whole list
cannot say which of its elements is wrong and what it holds; this can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ballonet.api.parse import InvalidPoolError, parse_spec
from ballonet.api.v1alpha1 import InferencePoolSpec

_PREFIX = "spec: "


def checked_spec(pool: Mapping[str, Any]) -> InferencePoolSpec:
    """Return the spec of a pool, or say for each wrong field where it stands and what it holds.

    Raises:
        InvalidPoolError: a bound or a rule does not hold.
    """
    try:
        return parse_spec(pool)
    except InvalidPoolError as error:
        problems: list[str] = []
        for problem in error.problems:
            told = _rules(problem, pool["spec"]) if problem.startswith(_PREFIX) else []
            problems.extend(told or [problem])
        raise InvalidPoolError(problems) from None


def _rules(problem: str, spec: Mapping[str, Any]) -> list[str]:
    """Return a line for each place of the broken rules that one problem of the spec joins.

    Such rules are looked at only when every field is right by itself, so all fields can be read.
    """
    fields = {rule.message: rule.field for rule in InferencePoolSpec.RULES}
    messages = problem.removeprefix(_PREFIX).split("; ")
    if not fields.keys() & set(messages):
        return []
    places = list(_places(spec))
    told: list[str] = []
    for message in messages:
        exact = [f"{path}: {text}" for path, text, rule in places if rule in message]
        told.extend(exact or [f"spec{fields.get(message, '')}: {message}"])
    return told


def _places(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield path, text and the words by which its rule is known, for each wrong element."""
    ceiling: int = spec["sequence"]["maxTokens"]
    prefixes = {prefix["name"]: prefix["tokens"] for prefix in spec.get("sharedPrefixes") or ()}
    for t, topology in enumerate(spec.get("topologies") or ()):
        for r, role in enumerate(topology["roles"]):
            path = f"spec.topologies[{t}].roles[{r}]"
            tokens, prefix = role.get("maxTokens"), role.get("sharedPrefix")
            if tokens is not None and tokens > ceiling:
                text = (
                    f"{tokens} is above spec.sequence.maxTokens {ceiling}: lower it or raise that"
                )
                yield f"{path}.maxTokens", text, "maxTokens must not exceed"
            if prefix is not None and prefix not in prefixes:
                known = ", ".join(prefixes) or "none is declared"
                text = f"{prefix} is not one of spec.sharedPrefixes ({known})"
                yield f"{path}.sharedPrefix", text, "must be the name of one of sharedPrefixes"
            elif prefix is not None and tokens is not None and prefixes[prefix] > tokens:
                text = (
                    f"{prefix} has {prefixes[prefix]} tokens, more than the role's maxTokens "
                    f"{tokens}"
                )
                yield f"{path}.sharedPrefix", text, "longer than the role's maxTokens"
    for p, prefix in enumerate(spec.get("sharedPrefixes") or ()):
        if prefix["tokens"] > ceiling:
            text = f"{prefix['tokens']} is above spec.sequence.maxTokens {ceiling}"
            yield f"spec.sharedPrefixes[{p}].tokens", text, "longer than sequence.maxTokens"
