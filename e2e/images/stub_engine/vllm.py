#!/usr/bin/python3
"""An engine that looks like vLLM from outside and does what a test tells it, live.

    vllm serve MODEL [any flag of vLLM ...]

It serves /health, /version, /v1/models, /v1/completions and /metrics with vLLM's names and labels.
The KV figures come from the flags, as in vLLM: blocks from --kv-cache-memory-bytes, at most
--max-num-active-seqs or --max-num-seqs requests at once, the rest waits.

POST /stub changes it while it runs, GET /stub shows its state. The body is a JSON object; a key
that is left out keeps its value:

    metrics         {"kv_cache_usage_perc": 0.5, ...}: values to report instead of the computed
                    ones (a string is written as it stands; null goes back to the computed value)
    cache_config    {"num_gpu_blocks": "64", ...}: labels of cache_config_info (null leaves one out)
    metrics_mode    normal, hang, garbage, nan, absent, empty, huge, error or redirect
    page            a whole metrics page to show instead of its own; null goes back to that
    health          HTTP status of /health
    version         what /version says
    hold_seconds    how long a request runs; a lower value also ends those that run already
    busy            {"status": 503, "retry_after": 2}: refuse completions so; null accepts them
    crash           {"lines": ["..."], "exit_code": 1}: log the lines and end

Environment, read once at start:

    STUB_SETTINGS            a JSON object as above
    STUB_START_SECONDS       time before it listens, as when a model loads
    STUB_CRASH_LINES         log these lines and end with STUB_EXIT_CODE (default 1) after that time
    STUB_OUT_OF_MEMORY       "1": take memory until the kernel ends the process
    STUB_NUM_GPU_BLOCKS      blocks of one engine, instead of computing them
    STUB_KV_BYTES_PER_TOKEN  KV bytes of a token; default from MODEL/config.json, else 2,048
    STUB_DRAIN_SECONDS       how long running requests may go on after SIGTERM (default 2)
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

METRICS_MODES = (
    "normal",
    "hang",
    "garbage",
    "nan",
    "absent",
    "empty",
    "huge",
    "error",
    "redirect",
)
HUGE_BYTES = 64 * 1024 * 1024
STREAM_CHUNKS = 16


@dataclass(frozen=True)
class Launch:
    """What the command line asked for."""

    model: str
    flags: dict[str, list[str]]

    def text(self, name: str, default: str) -> str:
        values = self.flags.get(name)
        return values[0] if values else default

    def number(self, name: str, default: int) -> int:
        try:
            return int(self.text(name, str(default)))
        except ValueError:
            raise SystemExit(f"vllm serve: error: argument --{name}: invalid int value") from None

    @property
    def served_names(self) -> list[str]:
        return self.flags.get("served-model-name") or [self.model]


@dataclass(frozen=True)
class KvCache:
    """KV memory of one engine, from the flags."""

    block_tokens: int
    blocks: int
    memory_bytes: int
    max_model_len: int

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_tokens)

    @property
    def max_concurrency(self) -> float:
        return self.blocks / self.blocks_per_sequence


@dataclass
class Settings:
    """What POST /stub can change."""

    metrics: dict[str, Any] = field(default_factory=dict)
    cache_config: dict[str, Any] = field(default_factory=dict)
    metrics_mode: str = "normal"
    page: str | None = None
    health: int = 200
    version: str = "0.32.0"
    hold_seconds: float = 0.05
    busy: dict[str, Any] | None = None
    crash: dict[str, Any] | None = None

    def change(self, body: Any) -> None:
        """Take over the keys of `body`.

        Raises:
            ValueError: not an object, an unknown key, or an unknown metrics mode.
        """
        known = set(asdict(self))
        if not isinstance(body, dict) or not set(body) <= known:
            raise ValueError(f"a JSON object with some of the keys {sorted(known)} is wanted")
        if body.get("metrics_mode", "normal") not in METRICS_MODES:
            raise ValueError(f"metrics_mode {body['metrics_mode']!r}: one of {METRICS_MODES}")
        for name, value in body.items():
            merged = name in {"metrics", "cache_config"}
            setattr(self, name, getattr(self, name) | value if merged else value)


class Engine:
    """Requests, counters and settings; every change is announced to those who wait for one."""

    def __init__(self, launch: Launch, cache: KvCache, settings: Settings) -> None:
        self.launch = launch
        self.cache = cache
        self.settings = settings
        self.ranks = launch.number("data-parallel-size", 1)
        slots = launch.number("max-num-active-seqs", launch.number("max-num-seqs", 128))
        self.slots = slots * self.ranks
        self.changed = threading.Condition()
        self.running: dict[int, int] = {}  # request number -> tokens it may hold
        self.waiting: list[int] = []
        self.received = 0
        self.finished = 0
        self.rejected = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.unanswered = 0  # completions whose answer is not yet written

    def run(self, prompt_tokens: int, output_tokens: int) -> Iterator[int]:
        """Queue one request, run it, and yield how many of its tokens exist, up to all of them."""
        with self.changed:
            number = self.received
            self.received += 1
            self.waiting.append(number)
            self.changed.wait_for(
                lambda: self.waiting[0] == number and len(self.running) < self.slots
            )
            self.waiting.remove(number)
            self.running[number] = prompt_tokens + output_tokens
            self.prompt_tokens += prompt_tokens
            self.changed.notify_all()
        start = time.monotonic()
        try:
            steps = min(STREAM_CHUNKS, output_tokens)
            for step in range(1, steps + 1):
                self._hold(start, step / steps)
                yield output_tokens * step // steps
            with self.changed:
                self.finished += 1
                self.generated_tokens += output_tokens
        finally:
            with self.changed:
                del self.running[number]
                self.changed.notify_all()

    def _hold(self, start: float, share: float) -> None:
        def left() -> float:
            return start + self.settings.hold_seconds * share - time.monotonic()

        with self.changed:
            while (seconds := left()) > 0:
                self.changed.wait(seconds)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a completion as unanswered until the block, which writes the answer, ends."""
        with self.changed:
            self.unanswered += 1
        try:
            yield
        finally:
            with self.changed:
                self.unanswered -= 1
                self.changed.notify_all()

    def metrics_page(self) -> str:
        """vLLM's page in the Prometheus text format, one series an engine (data-parallel rank)."""
        with self.changed:
            lines: list[str] = []
            blank = self.settings.metrics_mode == "nan"
            for name, kind, per_rank, labels in self._families():
                lines += [f"# HELP vllm:{name} {name}", f"# TYPE vllm:{name} {kind}"]
                for rank in range(self.ranks):
                    value = self.settings.metrics.get(name)
                    value = per_rank[rank] if value is None else value
                    pairs = {"engine": str(rank), "model_name": self.launch.served_names[0]}
                    if labels is None:
                        pairs = {"engine": str(rank)} | self._cache_config()
                    shown = ",".join(
                        f'{k}="{v}"' for k, v in sorted((pairs | (labels or {})).items())
                    )
                    lines.append(f"vllm:{name}{{{shown}}} {'NaN' if blank else value}")
        return "\n".join(lines) + "\n"

    def _families(self) -> Iterator[tuple[str, str, list[float], dict[str, str] | None]]:
        def spread(total: int) -> list[float]:
            return [(total + self.ranks - 1 - rank) // self.ranks for rank in range(self.ranks)]

        block = self.cache.block_tokens
        usable = max(1, self.cache.blocks - 1)
        usage = [0.0] * self.ranks
        for order, tokens in enumerate(self.running.values()):
            usage[order % self.ranks] += -(-tokens // block) / usable
        zero = [0.0] * self.ranks
        waiting = spread(len(self.waiting))
        yield "num_requests_running", "gauge", spread(len(self.running)), {}
        yield "num_requests_waiting", "gauge", waiting, {}
        yield "num_requests_waiting_by_reason", "gauge", waiting, {"reason": "capacity"}
        yield "kv_cache_usage_perc", "gauge", [min(1.0, share) for share in usage], {}
        yield "num_preemptions_total", "counter", zero, {}
        yield "prefix_cache_queries_total", "counter", spread(self.prompt_tokens), {}
        yield "prefix_cache_hits_total", "counter", zero, {}
        yield "prompt_tokens_total", "counter", spread(self.prompt_tokens), {}
        yield "generation_tokens_total", "counter", spread(self.generated_tokens), {}
        yield (
            "request_success_total",
            "counter",
            spread(self.finished),
            {"finished_reason": "length"},
        )
        yield (
            "admission_rejections_total",
            "counter",
            spread(self.rejected),
            {"reason": "max_num_queued_reqs"},
        )
        yield "cache_config_info", "gauge", [1.0] * self.ranks, None

    def _cache_config(self) -> dict[str, str]:
        cache = self.cache
        labels = {
            "block_size": str(cache.block_tokens),
            "cache_dtype": self.launch.text("kv-cache-dtype", "auto"),
            "enable_prefix_caching": str("no-enable-prefix-caching" not in self.launch.flags),
            "gpu_memory_utilization": self.launch.text("gpu-memory-utilization", "0.92"),
            "kv_cache_max_concurrency": str(cache.max_concurrency),
            "kv_cache_memory_bytes": str(cache.memory_bytes),
            "kv_cache_size_tokens": str(int(cache.max_concurrency * cache.max_model_len)),
            "num_cpu_blocks": "None",
            # The label is the sum over data-parallel engines, each of which repeats it.
            "num_gpu_blocks": str(cache.blocks * self.ranks),
            "num_gpu_blocks_override": self.launch.text("num-gpu-blocks-override", "None"),
            "sliding_window": "None",
        } | self.settings.cache_config
        return {name: str(value) for name, value in labels.items() if value is not None}


class Handler(BaseHTTPRequestHandler):
    """One HTTP connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: Engine

    def do_GET(self) -> None:
        settings = self.engine.settings
        path = self.path.split("?", 1)[0]
        if path in {"/health", "/ping"}:
            self._send(settings.health, b"")
        elif path == "/version":
            self._json(200, {"version": settings.version})
        elif path == "/v1/models":
            names = self.engine.launch.served_names
            length = self.engine.cache.max_model_len
            models = [{"id": name, "object": "model", "max_model_len": length} for name in names]
            self._json(200, {"object": "list", "data": models})
        elif path == "/metrics":
            self._metrics()
        elif path == "/stub":
            self._json(200, self._state())
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        except ValueError as error:
            self._error(400, f"the body is not JSON: {error}")
            return
        if self.path == "/stub":
            self._change(body)
        elif self.path == "/v1/completions":
            with self.engine.answering():
                self._completion(body)
        else:
            self._json(404, {"detail": "Not Found"})

    def _change(self, body: Any) -> None:
        with self.engine.changed:
            try:
                self.engine.settings.change(body)
            except (ValueError, TypeError) as error:
                self._error(400, str(error))
                return
            self.engine.changed.notify_all()
        self._json(200, self._state())
        if self.engine.settings.crash:
            crash(self.engine.settings.crash)

    def _state(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "argv": sys.argv[1:],
            "settings": asdict(engine.settings),
            "running": len(engine.running),
            "waiting": len(engine.waiting),
            "received": engine.received,
            "finished": engine.finished,
            "rejected": engine.rejected,
        }

    def _completion(self, body: dict[str, Any]) -> None:
        engine = self.engine
        busy = engine.settings.busy
        if busy:
            engine.rejected += 1
            self._error(busy["status"], "The engine is currently busy", busy.get("retry_after"))
            return
        name = body.get("model", engine.launch.served_names[0])
        if name not in engine.launch.served_names:
            self._error(404, f"The model `{name}` does not exist.")
            return
        prompt = body.get("prompt", "")
        prompt_tokens = len(prompt) if isinstance(prompt, list) else -(-len(prompt) // 4)
        output_tokens = body.get("max_tokens", 16)
        length = engine.cache.max_model_len
        if prompt_tokens + output_tokens > length:
            self._error(
                400,
                f"max_tokens={output_tokens} cannot be greater than max_model_len={length}"
                f" less the prompt's {prompt_tokens} tokens",
            )
            return
        tokens = engine.run(prompt_tokens, output_tokens)
        if body.get("stream"):
            self._stream(name, tokens)
            return
        for _ in tokens:
            pass
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }
        choice = {"index": 0, "text": "x" * output_tokens, "finish_reason": "length"}
        self._json(200, completion(name, [choice]) | {"usage": usage})

    def _stream(self, name: str, tokens: Iterator[int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        sent = 0
        for count in tokens:
            choice = {"index": 0, "text": "x" * (count - sent), "finish_reason": None}
            sent = count
            self.wfile.write(f"data: {json.dumps(completion(name, [choice]))}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _metrics(self) -> None:
        engine = self.engine
        mode = engine.settings.metrics_mode
        if mode == "hang":
            with engine.changed:
                engine.changed.wait_for(lambda: engine.settings.metrics_mode != "hang")
        elif mode == "error":
            self._json(500, {"detail": "Internal Server Error"})
            return
        elif mode == "redirect":
            self.send_response(302)
            self.send_header("Location", "/v1/models")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        pages = {
            "garbage": b"\xff\xfe vllm:num_requests_running{ not a number\n\x00{{{{",
            "absent": b'# TYPE python_info gauge\npython_info{version="3.11"} 1.0\n',
            "empty": b"",
        }
        page = pages.get(mode)
        if page is None:
            page = (engine.settings.page or engine.metrics_page()).encode()
        if mode == "huge":
            line = b'vllm:filler{engine="0",model_name="tiny"} 1.0\n'
            page = line * (HUGE_BYTES // len(line)) + page
        self._send(200, page, "text/plain; version=0.0.4; charset=utf-8")

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _error(self, status: int, message: str, retry_after: int | None = None) -> None:
        extra = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = {"error": {"message": message, "type": "stub", "code": status}}
        self._send(status, json.dumps(body).encode(), "application/json", extra)

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain",
        extra: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        headers = {"Content-Type": content_type, "Content-Length": str(len(body))} | (extra or {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Probes and scrapes would fill the log that tests read."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no event."""


def parse(arguments: list[str]) -> Launch:
    """`serve MODEL --flag [value ...]`, any flag, in both spellings and with `=`.

    Raises:
        SystemExit: another command.
    """
    if arguments[:1] != ["serve"]:
        raise SystemExit("usage: vllm serve MODEL [--flag [value ...]]")
    flags: dict[str, list[str]] = {}
    model = ""
    values: list[str] | None = None
    for argument in arguments[1:]:
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            values = [value] if equals else []
            flags[name.replace("_", "-")] = values  # the last of a repeated flag wins
        elif values is None:
            model = argument
        else:
            values.append(argument)
    return Launch(model=flags.get("model", [model])[0] or model, flags=flags)


def kv_cache(launch: Launch) -> KvCache:
    """The KV memory that the flags give.

    Raises:
        SystemExit: too small for one sequence of the maximum length, said in vLLM's words.
    """
    config = read_config(launch.model)
    block_tokens = launch.number("block-size", 16)
    max_model_len = launch.number("max-model-len", config.get("max_position_embeddings", 8192))
    memory_bytes = launch.number("kv-cache-memory-bytes", 8 * 1024 * 1024)
    token_bytes = int(os.environ.get("STUB_KV_BYTES_PER_TOKEN") or kv_bytes_per_token(config))
    blocks = memory_bytes // (token_bytes * block_tokens)
    blocks = launch.number("num-gpu-blocks-override", blocks)
    blocks = int(os.environ.get("STUB_NUM_GPU_BLOCKS") or blocks)
    cache = KvCache(block_tokens, blocks, memory_bytes, max_model_len)
    if blocks - 1 < cache.blocks_per_sequence:
        raise SystemExit(
            f"ValueError: To serve at least one request with the model's max seq len"
            f" ({max_model_len}), more KV cache memory is needed than is available. The estimated"
            f" maximum model length is {(blocks - 1) * block_tokens}."
        )
    return cache


def read_config(model: str) -> dict[str, Any]:
    path = Path(model) / "config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return config


def kv_bytes_per_token(config: dict[str, Any]) -> int:
    """Bytes of keys and values in two-byte elements over all layers."""
    if "num_hidden_layers" not in config:
        return 2048
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * int(config["num_hidden_layers"]) * int(heads) * int(size) * 2


def completion(model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "cmpl-stub", "object": "text_completion", "model": model, "choices": choices}


def log(line: str) -> None:
    print(f"(APIServer pid={os.getpid()}) {line}", file=sys.stderr, flush=True)


def crash(order: dict[str, Any]) -> None:
    for line in order.get("lines", []):
        print(line, file=sys.stderr, flush=True)
    os._exit(order.get("exit_code", 1))


def take_memory_until_killed() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1024)) * (16 * 1024))
        time.sleep(0.01)


def main() -> int:
    stop = threading.Event()
    # As process 1 of a container it has no default action: without this SIGTERM would be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    launch = parse(sys.argv[1:])
    environment = os.environ
    settings = Settings()
    settings.change(json.loads(environment.get("STUB_SETTINGS") or "{}"))
    log(f"INFO stub engine: vLLM API server version {settings.version}, model {launch.model}")
    if stop.wait(float(environment.get("STUB_START_SECONDS") or 0)):
        return 0
    if environment.get("STUB_OUT_OF_MEMORY") == "1":
        take_memory_until_killed()
    if lines := environment.get("STUB_CRASH_LINES"):
        exit_code = int(environment.get("STUB_EXIT_CODE") or 1)
        crash({"lines": lines.splitlines(), "exit_code": exit_code})
    cache = kv_cache(launch)
    tokens = math.floor(cache.max_concurrency * cache.max_model_len)
    log(
        f"INFO GPU KV cache size: {tokens:,} tokens, Maximum concurrency for"
        f" {cache.max_model_len:,} tokens per request: {cache.max_concurrency:.2f}x"
    )
    engine = Engine(launch, cache, settings)
    host = launch.text("host", "0.0.0.0")
    Server.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    handler = type("EngineHandler", (Handler,), {"engine": engine})
    server = Server((host, launch.number("port", 8000)), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log(f"INFO Starting vLLM API server on port {server.server_port}")
    log("INFO Application startup complete.")
    stop.wait()
    log("INFO Shutting down")
    server.shutdown()
    server.socket.close()
    with engine.changed:
        seconds = float(environment.get("STUB_DRAIN_SECONDS") or 2)
        engine.changed.wait_for(lambda: engine.unanswered == 0, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
