# Makes `.venv` with this checkout installed, or leaves it as it is when nothing it was made from has changed.
# Source it from the repository's root with the extras to install, for instance:  . scripts/_venv.sh test

extras="${1:-}"
python="${PYTHON:-python3.11}"
command -v "$python" >/dev/null 2>&1 || python=python3

# What the environment was made from: the stamp inside it holds the same digest when it is up to date.
digest=$(cat pyproject.toml constraints.txt scripts/_venv.sh | cksum | cut -d' ' -f1)
stamp=".venv/installed-$digest"

have_extras() {
    [ -f "$stamp" ] || return 1
    [ -z "$extras" ] || grep -qx "$extras" "$stamp"
}

if ! have_extras; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: Python 3.11 or newer is needed, got $("$python" --version 2>&1); set PYTHON=/path/to/python3.11" >&2
        exit 4
    }
    [ -x .venv/bin/python ] || { echo "making .venv"; "$python" -m venv .venv; }
    echo "installing torchtpu-dist${extras:+ [$extras]} into .venv (once, a minute or two)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable ".${extras:+[$extras]}"
    for old in .venv/installed-*; do [ "$old" = "$stamp" ] || rm -f "$old"; done
    case "$extras" in
        dev) printf 'dev\ntest\n' ;; # dev contains test
        *) echo "$extras" ;;
    esac >>"$stamp"
fi
