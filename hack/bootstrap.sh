#!/bin/sh
# Make the project's virtual environment, once a machine and lock file, and print its path.
#
#   hack/bootstrap.sh          make it if it is missing (as root also the Debian packages it needs)
#   hack/bootstrap.sh path     only print where it is or would be
#
# PYTHON names the interpreter (default python3, 3.11 or newer); BALLONET_CACHE the cache folder.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "bootstrap: $*" >&2
    exit 1
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "$python is missing: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -V); Python 3.11 or newer is needed (PYTHON=... names another)"

cache=${BALLONET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ballonet}
key=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)' && cat requirements-dev.txt; } |
    sha256sum | cut -c1-16)
venv=$cache/venv-$key

if [ "${1:-}" = path ] || [ -e "$venv/.complete" ]; then
    echo "$venv"
    exit 0
fi

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/.complete" ]; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        [ "$(id -u)" = 0 ] || fail "$python cannot make a venv: apt-get install python3-venv"
        echo "bootstrap: installing python3-venv" >&2
        apt-get -qq update >&2
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
            python3-venv >&2
    fi
    echo "bootstrap: virtual environment $venv" >&2
    # It cannot be made aside and renamed, its scripts hold its path: hence the marker.
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --require-hashes -r requirements-dev.txt >&2
    touch "$venv/.complete"
fi
echo "$venv"
