#!/bin/sh
# Prepare this checkout: check what the machine must have, make .venv, install the project into it.
#
#   scripts/setup.sh demo|dev     what `make demo` and `make test` call; a second run takes a moment
#   scripts/setup.sh demo-stream  what `make demo-stream` calls: as demo, but Java is not asked for
#   scripts/setup.sh docs         what `make docs` calls; the site needs neither Java nor Spark
#   scripts/setup.sh check        the checks alone
#   scripts/setup.sh java         install Java 17 or newer with this system's package manager
#
# Every missing thing is named in one sentence, with the way to get it; then the exit code is 2. The system packages that
# they install by themselves, with apt or dnf, are Java (demo and dev) and Chromium (dev), and only where that needs no
# password (as root, or with sudo -n). They say so first. Without Chromium the tests of the page are skipped.
set -eu
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
missing=0

say() { printf '%s\n' "$*" >&2; }
lack() { say "missing: $*"; missing=1; }

package_manager() {
    for candidate in apt-get dnf brew; do
        if command -v "$candidate" >/dev/null 2>&1; then echo "$candidate"; return; fi
    done
    echo none
}

# --- a POSIX system ---------------------------------------------------------------------------------------------

check_system() {
    case "$(uname -s)" in
        Linux | Darwin) ;;
        *) lack "a POSIX system: this is $(uname -s). Run it on Linux or macOS; on Windows, inside WSL 2." ;;
    esac
}

# --- Python -----------------------------------------------------------------------------------------------------

# The first interpreter that runs and is new enough. A name on the PATH is not enough: pyenv leaves names of versions
# that are not active.
find_python() {
    for candidate in ${PYTHON:-} "$VENV/bin/python" python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
}

check_python() {
    python=$(find_python)
    if [ -z "$python" ]; then
        found=$(python3 -V 2>&1) || found="no python3 at all"
        case "$(package_manager)" in
            apt-get) how="sudo apt-get install -y python3.11 python3.11-venv" ;;
            dnf) how="sudo dnf install -y python3.11" ;;
            brew) how="brew install python@3.11" ;;
            *) how="https://www.python.org/downloads/" ;;
        esac
        lack "Python 3.11 or newer (found: $found). Get it with: $how; or name one: make … PYTHON=/path/to/python3.11"
    elif [ ! -x "$VENV/bin/python" ] && ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        lack "the venv module of Python $version. Get it with: sudo apt-get install -y python$version-venv"
    fi
}

# --- Java -------------------------------------------------------------------------------------------------------

java_program() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else command -v java || true; fi
}

# 17 from 'openjdk version "17.0.15"', 8 from '"1.8.0_412"', 0 if there is none. macOS has a java that only says that
# there is no Java.
java_major() {
    program=$(java_program)
    [ -n "$program" ] || { echo 0; return; }
    banner=$("$program" -version 2>&1) || { echo 0; return; }
    major=$(printf '%s\n' "$banner" | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | sed -n 1p)
    echo "${major:-0}"
}

# Debian and Ubuntu carry one or two of these each.
apt_java() {
    for candidate in openjdk-17-jre-headless openjdk-21-jre-headless; do
        if apt-cache policy "$candidate" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo default-jre-headless
}

java_command() {
    case "$(package_manager)" in
        apt-get) echo "apt-get install -y $(apt_java)" ;;
        dnf) echo "dnf install -y java-17-openjdk-headless || dnf install -y java-21-openjdk-headless" ;;
        brew) echo "brew install openjdk@17" ;;
        *) echo "" ;;
    esac
}

# "system_install COMMAND -n" asks for no password.
system_install() {
    sudo=""
    if [ "$(id -u)" != 0 ]; then sudo="sudo ${2:-}"; fi
    # shellcheck disable=SC2086  # a command and its words
    case "$(package_manager)" in
        apt-get) $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive $1 ;;
        dnf) $sudo sh -c "$1" ;;
        *) return 1 ;;
    esac
}

install_java() {
    case "$(package_manager)" in
        apt-get | dnf) system_install "$(java_command)" "${1:-}" ;;
        brew)
            brew install openjdk@17
            say "Then: export JAVA_HOME=$(brew --prefix openjdk@17)"
            ;;
        *) say "No apt-get, dnf or brew here: get Java 17 or newer from https://adoptium.net and set JAVA_HOME."; exit 2 ;;
    esac
}

# Whether this user may install packages without being asked for a password.
without_password() {
    case "$(package_manager)" in
        apt-get | dnf) [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1 ;;
        *) false ;;
    esac
}

# "check_java install" gets Java where that needs no password. A JAVA_HOME stays the user's: Spark follows it.
check_java() {
    major=$(java_major)
    if [ "$major" -lt 17 ] && [ "${1:-}" = install ] && [ -z "${JAVA_HOME:-}" ] && without_password; then
        say "Java 17 or newer, which Spark runs on, is missing. $(package_manager) installs it now; no password is needed."
        install_java -n >&2 || say "$(package_manager) could not install it: see its message above."
        major=$(java_major)
    fi
    [ "$major" -ge 17 ] && return
    if [ "$major" != 0 ]; then
        found="Java $major at $(java_program)"
    elif [ -n "${JAVA_HOME:-}" ]; then
        found="none that runs at JAVA_HOME, $JAVA_HOME"
    else
        found="none"
    fi
    how=$(java_command)
    case "$(package_manager)" in
        brew) how="$how && export JAVA_HOME=\$(brew --prefix openjdk@17)" ;;
        none) how="https://adoptium.net, then set JAVA_HOME" ;;
        *) how="sudo $how" ;;
    esac
    lack "Java 17 or newer, which Spark runs on (found: $found). Get it with: $how; or run: make java"
}

# --- Chromium ---------------------------------------------------------------------------------------------------

# The names that tests/support/page/browser.py looks for.
has_browser() {
    for candidate in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$candidate" >/dev/null 2>&1; then return; fi
    done
    return 1
}

install_browser() {
    if has_browser; then return; fi
    if without_password; then
        say "Chromium, which the tests of the page drive, is missing. $(package_manager) installs it now; no password is needed."
        case "$(package_manager)" in
            apt-get) packages="--no-install-recommends chromium fonts-dejavu-core" ;;
            *) packages=chromium ;;
        esac
        system_install "$(package_manager) install -y $packages" -n >&2 || true
    fi
    has_browser || say "No Chromium here: the tests of the page that need a browser will be skipped."
}

# --- Room on the disk -------------------------------------------------------------------------------------------

check_room() {
    free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "$free" -lt "$1" ]; then
        lack "room on the disk of $(pwd): $free MB are free, $1 MB are needed (Spark and its libraries take about 1.2 GB)"
    fi
}

# --- The environment --------------------------------------------------------------------------------------------

# What the installed environment depends on. The stamp holds it, so that nothing is installed while nothing changed.
wanted() { { echo "$python"; cat pyproject.toml constraints.txt tests/requirements-flower.txt; } | cksum; }

is_installed() {
    [ -x "$VENV/bin/unstuck" ] || return 1
    # dev holds all that demo and docs hold
    for stamp in "$VENV/.unstuck-$1" "$VENV/.unstuck-dev"; do
        if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted)" ]; then return 0; fi
    done
    return 1
}

# uv installs the environment in about a third of the CPU time of pip. uv does not read the configuration of pip, so an
# index that is configured for pip is passed on.
install_packages() {
    index=$("$python" -m pip config get global.index-url 2>/dev/null) || index=""
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$index}}
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
    if ! "$VENV/bin/uv" pip install --quiet --system-certs --python "$python" "$@" -c constraints.txt; then
        say "uv could not install the project: see its message above. The first installation needs the network."
        exit 2
    fi
}

install() {
    if [ ! -x "$VENV/bin/python" ]; then
        say "Creating $VENV with $python ($("$python" -V 2>&1))."
        "$python" -m venv "$VENV"
    fi
    python="$VENV/bin/python"
    say "Installing the project and its tested dependencies ($1) into $VENV; the first time takes about a minute."
    if ! "$python" -m pip install --quiet --disable-pip-version-check uv -c constraints.txt; then
        say "pip could not install uv: see its message above. The first installation needs the network."
        exit 2
    fi
    if [ "$1" = dev ]; then
        install_browser &
    fi
    install_packages -e ".[$1]"
    if [ "$1" = dev ]; then
        # Flower has its own directory: a Celery process imports Flower if it can, which takes a tenth of a second.
        install_packages --upgrade --no-deps --target "$VENV/flower" -r tests/requirements-flower.txt
        wait
    fi
    wanted >"$VENV/.unstuck-$1"
}

end_if_missing() {
    if [ "$missing" = 1 ]; then exit 2; fi
}

case "${1:-}" in
    check)
        check_system; check_python; check_java; check_room 3000
        end_if_missing
        say "This machine has what Unstuck needs: $("$python" -V), Java $(java_major), $free MB free."
        ;;
    demo | demo-stream | dev)
        check_system; check_python
        if [ "$1" != demo-stream ]; then check_java install; fi
        if [ -x "$VENV/bin/python" ]; then python="$VENV/bin/python"; fi
        extra=${1%-stream}
        if is_installed "$extra"; then check_room 1000; end_if_missing; exit 0; fi
        check_room 3000
        end_if_missing
        install "$extra"
        ;;
    docs)
        check_system; check_python
        if [ -x "$VENV/bin/python" ]; then python="$VENV/bin/python"; fi
        if is_installed docs; then end_if_missing; exit 0; fi
        check_room 500
        end_if_missing
        install docs
        ;;
    java) install_java ;;
    *)
        say "usage: scripts/setup.sh demo|demo-stream|dev|docs|check|java"
        exit 2
        ;;
esac
