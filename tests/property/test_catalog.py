"""Files of entries, however they are spoiled: a catalog or a refusal in words, never a fault."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ballonet.catalog import Catalog, InvalidCatalog
from ballonet.kv.config import LayoutNotUnderstood

CATALOG = Catalog.builtin()
DOCUMENT: dict[str, Any] = {
    "architectures": [CATALOG.architectures["9.0"].as_written()],
    "accelerators": [CATALOG.accelerators[3].as_written(), CATALOG.accelerators[-1].as_written()],
    "models": [
        {**CATALOG.models[9].as_written(), "name": "acme/first", "aliases": ["acme/1st"]},
        {**CATALOG.models[-1].as_written(), "name": "acme/second", "aliases": []},
    ],
}
SPOILED = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    st.sampled_from([0, -1, 10**18, "", "recalled", [], {}, [[]], {"": {}}, "9.0", 9.0]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    return found + [place for key, inner in items for place in places(inner, (*path, key))]


PLACES = places(DOCUMENT)


@given(st.lists(st.tuples(st.sampled_from(PLACES), SPOILED, st.booleans()), max_size=4))
def test_a_spoiled_file_is_used_or_refused(
    changes: list[tuple[tuple[Any, ...], Any, bool]],
) -> None:
    document = copy.deepcopy(DOCUMENT)
    for path, value, removed in changes:
        holder = document
        try:
            for step in path[:-1]:
                holder = holder[step]
            if removed:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # An earlier change took this place away.
    try:
        catalog = CATALOG.with_entries(json.dumps(document), "own.json")
    except InvalidCatalog as error:
        assert error.problems
        assert all(problem.startswith("own.json: ") for problem in error.problems)
        return
    for name in ("acme/first", "acme/second"):
        own = catalog.model(name)
        if own is not None:
            with contextlib.suppress(LayoutNotUnderstood):
                assert own.geometry.layers >= 0
