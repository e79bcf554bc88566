"""What others say is repeated without secrets, and otherwise as it was."""

from __future__ import annotations

import pytest

from ballonet.api.redaction import redact


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hidden1234 is set",
        "HF_TOKEN = 'hidden1234 hidden1234'",
        "Authorization: Bearer hidden1234",
        '{"headers": {"Authorization": "Basic hidden1234"}}',
        r"{\"api_key\": \"hidden1234\"}",
        "args: Namespace(api_key=['hidden1234', 'hidden1234'], port=8000)",
        "error: unrecognized arguments: --x --api-key hidden1234",
        "cannot reach https://user:hidden1234@example.org/model",
        "db-password:hidden1234",
        "AWS_SECRET_ACCESS_KEY=hidden1234",
        "a token=hidden1234",
        "HF_TOKEN=hidden1234 failed",
        "Proxy-Authorization: Negotiate hidden1234",
        "api_key=('hidden1234',)",
        "WANDB_KEY=hidden1234",
        "ssl_private-key: hidden1234",
        "passphrase=hidden1234",
        "cannot reach https://user:at@hidden1234@example.org/model",
        "403 Client Error for url: https://cdn.example.org/a?Policy=b&Signature=hidden1234&Key-Id=c",
        "https://s3.example.org/a?X-Amz-Algorithm=b&X-Amz-Signature=hidden1234",
        "https://example.blob.core.windows.net/a?sv=1&sig=hidden1234&se=2",
        '.env[name="PIN"].value: expected string, got &value.valueUnstructured{Value:hidden1234}',
        "hf_hidden1234",
        "ghp_hidden1234",
        "github_pat_hidden1234",
        "glpat-hidden1234",
        "nvapi-hidden1234",
        "xoxb-hidden1234",
        "eyJhbGciOiJIUzI1NiJ9.hidden1234.hidden1234",
        "sk-hidden1234",
    ],
)
def test_secrets_in_the_words_of_a_pod_are_not_repeated(text: str) -> None:
    assert "hidden1234" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=2048 is smaller than max_model_len",
        "tokenizer: Qwen2TokenizerFast",
        "To serve at least one request with the model's max seq len (608), 0.25 GiB is needed",
        "KeyError: 'layers.0'",
        "ValueError: max tokens 1024, estimated maximum model length is 480 tokens per request",
        "num_key_value_heads=8 and key: value",
        "TypeError: unexpected signature: (a, b)",
        'Deployment.apps "token-pool" is invalid: spec.replicas: Invalid value: -1',
        "https://hub.example.org/model?revision=main&design=1",
    ],
)
def test_figures_in_the_words_of_a_pod_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "token-",
        "token=",
        "token ",
        "--api-key ",
        "a-",
        "_key",
        "://",
        "://a@",
        "a@",
        "[",
        "?sig",
        "eyJ",
    ],
)
def test_no_words_of_a_pod_keep_the_operator_busy(piece: str) -> None:
    text = piece * (64 * 1024 // len(piece))
    # With backtracking this call would take hours.
    assert len(redact(text)) <= 2 * len(text)
