"""The file of Prometheus connections: what it may say, and that it is read as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest import MonkeyPatch

from ballonet.api.yaml_input import InvalidInput
from ballonet.telemetry.connections import (
    Connections,
    InvalidConnectionsError,
    parse_connections,
)

ALL = """\
connections:
- name: main
  url: https://prometheus.monitoring.svc:9090/
  pathPrefix: /prometheus/
  caFile: /etc/ballonet/ca.crt
  basicAuth: {usernameFile: /user, passwordFile: /password}
  headers: {X-Scope-OrgID: agents}
  headerFiles: {X-Api-Key: /key}
  labels: {cluster: eu-1}
  namespaceLabel: kubernetes_namespace
  podLabel: kubernetes_pod_name
- {name: other, url: "http://[fd00::1]:9090"}
"""


def test_every_field_is_read() -> None:
    connections = parse_connections(ALL)
    assert list(connections) == ["main", "other"]
    main = connections["main"]
    assert main.base_url == "https://prometheus.monitoring.svc:9090/prometheus"
    assert main.labels == {"cluster": "eu-1"}
    assert (main.namespace_label, main.pod_label) == (
        "kubernetes_namespace",
        "kubernetes_pod_name",
    )
    assert connections["other"].base_url == "http://[fd00::1]:9090"


def test_an_empty_file_has_no_connections() -> None:
    assert parse_connections("") == {}
    assert parse_connections("connections: []") == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("url: prometheus:9090", "url"),
        ("url: http://me:s3cret@prometheus:9090", "url"),
        ("url: http://prometheus:9090/?token=s3cret", "url"),
        ("url: http://prometheus:9090/prefix", "url"),
        ("url: ftp://prometheus", "url"),
        ("url: http://prometheus:99999", "url: Value error, the port is not between 1 and 65535"),
        ("url: http://prometheus:0", "url: Value error, the port is not between 1 and 65535"),
        ('url: "http://[::1::]:9090"', "url: Value error, what stands in brackets is no IPv6"),
        ('url: "http://[....]"', "url: Value error, what stands in brackets is no IPv6 address"),
        ("url: http://prometheus..svc", "url: String should match"),
        (f"url: http://{'p' * 64}", "url: String should match"),
        ('url: http://p, headers: {X-A: " s3cret"}', "headers.X-A"),
        ("", "url: Field required"),
        ("url: http://p, pathPrefix: prometheus", "pathPrefix"),
        ("url: http://p, bearerToken: s3cret", "bearerToken: Extra inputs are not permitted"),
        ("url: http://p, bearerTokenFile: token", "bearerTokenFile"),
        ('url: http://p, headers: {X-A: "s3cret\\nX-B: c"}', "headers.X-A"),
        ("url: http://p, headers: {'a b': s3cret}", "headers.…"),
        ("url: http://p, headers: {'Authorization: Bearer s3cret': x}", "headers.…"),
        ("url: http://p, headers: {'Authorization: Bearer s3cret'}", "headers.…"),
        ("url: http://p, 'bearerToken s3cret'", "connections.0.…: Extra inputs"),
        (r'url: http://p, caFile: "/a\0b"', "caFile"),
        ("url: http://p, labels: {'cluster=\"x\"} or up{': s3cret}", "labels"),
        (
            "url: http://p, bearerTokenFile: /t, basicAuth: {usernameFile: /u, passwordFile: /p}",
            "give one of bearerTokenFile and basicAuth",
        ),
    ],
)
def test_what_cannot_be_used_is_named_without_its_value(fields: str, words: str) -> None:
    with pytest.raises(InvalidConnectionsError) as caught:
        parse_connections(f"connections: [{{name: main, {fields}}}]")
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: main", "valid dictionary"),
        ("connection: []", "connection: Extra inputs"),
        ("connections: []\n---\nconnections: []", "several documents"),
        (
            "connections: [{name: a, url: http://p}, {name: a, url: http://q}]",
            "two connections of one name",
        ),
        ("connections: [{name: Main, url: http://p}]", "name"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidConnectionsError, match=words):
        parse_connections(text)


def test_what_is_no_yaml_is_refused() -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        parse_connections("connections: [")


def test_a_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "connections.yaml"
    connections = Connections(str(file))
    with pytest.raises(InvalidConnectionsError, match="it has: none"):
        connections.named("main")
    file.write_text(ALL)
    assert connections.named("main").url == "https://prometheus.monitoring.svc:9090/"
    with pytest.raises(InvalidConnectionsError, match="'mian'; it has: main, other"):
        connections.named("mian")
    file.write_text(ALL.replace("monitoring", "metrics"))
    assert connections.named("main").url == "https://prometheus.metrics.svc:9090/"
    file.write_text("connections: [")
    with pytest.raises(InvalidConnectionsError, match=r"connections\.yaml: line 2"):
        connections.named("main")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The folder too: to ask whether a file is there is refused then.
    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(InvalidConnectionsError, match=r"c\.yaml: Permission denied"):
        Connections(str(tmp_path / "c.yaml")).named("main")


def test_an_operator_without_the_setting_has_none() -> None:
    with pytest.raises(InvalidConnectionsError, match="it has: none"):
        Connections(None).named("main")
