#!/bin/sh
# Resolve the dependencies anew and write the lock files: versions and hashes, no index address.
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
# uv reads neither pip's settings nor, by itself, the system's certificates.
export SSL_CERT_FILE="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; fi

lock() {
    target=$1
    shift
    "$folder/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --upgrade --output-file "$folder/$target" "$@"
    {
        echo "# Written by \`make lock\`; do not edit."
        cat "$folder/$target"
    } >"$target"
}

lock requirements.txt pyproject.toml
lock requirements-dev.txt --constraint requirements.txt pyproject.toml requirements-dev.in
lock requirements-build.txt requirements-build.in
