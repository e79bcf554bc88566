"""Reading probes: real pages, probes that are off, absent, or say what cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from ballonet.api.conditions import Reason
from ballonet.diagnosis.observation import Observation, Sequences
from ballonet.telemetry.port import EngineSample, PodTarget, ProbeSilence, ScrapeFailure
from ballonet.telemetry.probe import MAX_PAGE_BYTES, ProbeReader, read_probes
from ballonet.telemetry.reading import InvalidPageError
from ballonet_probe.lifecycle import MAX_ROLES, OTHER, Histogram, Lifecycle
from ballonet_probe.page import live_page, off_page
from ballonet_probe.settings import MAX_TOP, RoleLimits, Settings
from ballonet_probe.snapshot import Sequence, Snapshot

COMMON = {"model": "tiny", "engine": 0}
SETTINGS = Settings(top=2, roles={"worker": RoleLimits(800, 500), "planner": RoleLimits(1024)})


def a_sequence(name: str, tokens: int, phase: str = "decode", role: str = "worker") -> Sequence:
    held = tokens // 32 if phase in ("prefill", "decode") else 0
    return Sequence(name, "run1", role, phase, held, held, tokens)


def a_page(*sequences: Sequence, shared: int = 4) -> str:
    used = shared + sum(one.exclusive_blocks for one in sequences)
    return live_page(
        COMMON,
        SETTINGS,
        Snapshot(255, 255 - used, shared, sequences),
        Lifecycle(SETTINGS),
        scan_seconds=0.0001,
    )


PAGE = a_page(
    a_sequence("a", 100),
    a_sequence("b", 600),
    a_sequence("c", 900),
    a_sequence("d", 300, "prefill", "planner"),
    a_sequence("e", 5000, "waiting"),
)


def test_a_page_tells_of_all_sequences_and_not_only_of_those_with_a_name() -> None:
    assert read_probes([PAGE]) == Sequences(
        count=4,
        tokens=1900,
        longest_tokens=900,
        shared_blocks=4,
        # A sequence that waits is live too, and past its ceiling by its prompt alone.
        past_ceiling={"planner": 0, "worker": 2},
        past_compaction={"planner": 0, "worker": 3},
        ended_past_ceiling={"planner": 0, "worker": 0},
    )


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0"]
)
def test_text_of_clients_ends_no_line_of_the_page(end: str) -> None:
    evil = f'x{end}ballonet_kv_sequences{{phase="decode"}} 99{end}'
    sequences = [
        Sequence(evil, evil, evil, "decode", 3, 3, 100),
        a_sequence("b", 600),
    ]
    seen = read_probes([a_page(*sequences)])
    assert (seen.count, seen.tokens) == (2, 700)


def test_engines_of_a_pod_add_up_but_for_the_longest() -> None:
    both = read_probes([PAGE, a_page(a_sequence("a", 1000), shared=1)])
    assert (both.count, both.tokens, both.longest_tokens) == (5, 2900, 1000)
    assert both.shared_blocks == 5
    assert both.past_ceiling == {"planner": 0, "worker": 3}


def test_an_idle_engine_is_told_from_none() -> None:
    idle = read_probes([a_page(shared=0)])
    assert (idle.count, idle.tokens, idle.longest_tokens, idle.shared_blocks) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("", "is it the probe's port"),
        ("vllm:num_requests_running 1\n", "is it the probe's port"),
        ("ballonet_probe_up 1\n", "there is no ballonet_kv_sequences"),
        (PAGE.replace("} 1600", "} NaN"), "is not between 0 and"),
        (PAGE.replace("} 1600", "} -1"), "is not between 0 and"),
        (PAGE.replace("} 1600", "} 1e300"), "is not between 0 and"),
        (PAGE.replace("} 1600", "} many"), "does not parse"),
        (PAGE + 'ballonet_kv_blocks_in_use{sequence_id="x"} 1\n' * 3000, "lines of the series"),
        (
            PAGE + f'ballonet_seq_past_ceiling{{role="{"x" * 65}"}} 1\n',
            "longer values of label role",
        ),
        (PAGE + 'ballonet_seq_past_ceiling{role="\x1b[31m"} 1\n', "values of label role"),
    ],
)
def test_what_cannot_be_is_refused(page: str, words: str) -> None:
    with pytest.raises(InvalidPageError, match=words):
        read_probes([page])


# --- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture
async def reader() -> AsyncIterator[ProbeReader]:
    # With the limit of every day: a shorter one is passed where the machine is busy.
    reader = ProbeReader()
    yield reader
    await reader.close()


class Probes:
    """Pages on ports of loopback."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.clients: list[asyncio.StreamWriter] = []

    async def serve(self, page: str | None) -> int:
        """Serve a page; None never answers."""

        async def answer(reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
            self.clients.append(writes)
            await reads.readuntil(b"\r\n\r\n")
            if page is not None:
                body = page.encode()
                writes.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writes.drain()

        self.servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        port: int = self.servers[-1].sockets[0].getsockname()[1]
        return port


@pytest.fixture
async def probes() -> AsyncIterator[Probes]:
    probes = Probes()
    yield probes
    for server in probes.servers:
        server.close()
    for client in probes.clients:
        client.close()
        await client.wait_closed()


def a_sample(*ports: int) -> EngineSample:
    target = PodTarget("ns", "p-0", "u", "127.0.0.1", 8000, probe_ports=ports)
    return EngineSample(target, "0.32.0", None, Observation(at=datetime.now(UTC), engines=1))


async def joined(reader: ProbeReader, sample: EngineSample) -> EngineSample:
    (found,) = await reader.join([sample])
    assert isinstance(found, EngineSample)
    return found


async def test_what_probes_say_is_added_to_the_sample(reader: ProbeReader, probes: Probes) -> None:
    ports = [await probes.serve(PAGE), await probes.serve(a_page(a_sequence("a", 1000)))]
    found = await joined(reader, a_sample(*ports))
    assert found.silence is None
    assert found.observation.sequences is not None
    assert found.observation.sequences.count == 5


@pytest.mark.parametrize("character", ["x", "\\", "\N{GRINNING FACE}"])
async def test_the_longest_page_that_clients_can_make_of_a_probe_is_read(
    reader: ProbeReader, probes: Probes, character: str
) -> None:
    names = [f"{n:03}".ljust(64, character) for n in range(MAX_TOP)]
    settings = Settings(top=MAX_TOP, plain_ids=True)
    lifecycle = Lifecycle(settings)
    for role in [*names[:MAX_ROLES], OTHER]:
        lifecycle.finished_tokens[role] = Histogram([100])
        events = ("arrived", "admitted", "preempted", "resumed", "finished", "aborted")
        lifecycle.events.update({(event, role): 10**6 for event in events})
    sequences = tuple(Sequence(n.ljust(200, character), n, n, "decode", 1, 1, 100) for n in names)
    common = {"model": "m" * 256, "engine": 0}
    snapshot = Snapshot(1000, 700, 44, sequences)
    page = live_page(common, settings, snapshot, lifecycle, scan_seconds=0.0001)
    found = await joined(reader, a_sample(await probes.serve(page)))
    assert found.silence is None
    assert found.observation.sequences is not None
    assert found.observation.sequences.count == MAX_TOP


async def test_engines_without_probes_are_not_asked(reader: ProbeReader) -> None:
    sample = a_sample()
    failure = ScrapeFailure(sample.target, Reason.UNREACHABLE, "no answer")
    assert await reader.join([sample, failure]) == [sample, failure]


@pytest.mark.parametrize(
    ("page", "reason", "words"),
    [
        (off_page(COMMON, "KeyError: 'x'"), Reason.PROBE_OFF, "the probe is off: KeyError: 'x'"),
        (off_page(COMMON, "a\x1b[31m\nb"), Reason.PROBE_OFF, "the probe is off: a [31m b"),
        ("hello", Reason.INVALID_METRICS, "is it the probe's port"),
        ("x" * (MAX_PAGE_BYTES + 1), Reason.INVALID_METRICS, "is longer than"),
        (None, Reason.PROBE_ABSENT, "no answer within 3 s"),
    ],
)
async def test_why_a_probe_says_nothing(
    reader: ProbeReader, probes: Probes, page: str | None, reason: Reason, words: str
) -> None:
    # One of two engines is silent: the sums would be wrong, so there are none.
    ports = [await probes.serve(PAGE), await probes.serve(page)]
    found = await joined(reader, a_sample(*ports))
    assert found.observation.sequences is None
    assert isinstance(found.silence, ProbeSilence)
    assert found.silence.reason is reason
    assert words in found.silence.message


async def test_a_port_that_nobody_listens_on(reader: ProbeReader, probes: Probes) -> None:
    port = await probes.serve(PAGE)
    probes.servers[0].close()
    await probes.servers[0].wait_closed()
    found = await joined(reader, a_sample(port))
    assert found.silence is not None
    assert found.silence.reason is Reason.PROBE_ABSENT
