#!/bin/sh
# Say what this machine lacks, and how to get it, before anything fails halfway.
#
# usage: preflight.sh            Python, for everything
#        preflight.sh broker     and a way to a real Kafka: a given one, Docker, or Java and Maven
#        preflight.sh jvm        and Java and Maven
#
# PYTHON names the interpreter to look at (python3 otherwise). Prints nothing when all is there.
set -u

python=${PYTHON:-python3}
missing=0

lacks() {
    missing=1
    printf 'missing: %s\n    remedy: %s\n' "$1" "$2" >&2
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    lacks "Python 3.11 or newer ($python is $("$python" --version 2>/dev/null || echo 'not there'))" \
        "install it (Debian: apt-get install python3 python3-venv), or name one you have: make PYTHON=python3.12 ..."
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    lacks "the venv module of $python" "install it (Debian: apt-get install python3-venv)"
fi

wants_jvm() {
    case ${1:-} in
    jvm) return 0 ;;
    broker)
        [ -z "${STREAMSCHED_TEST_KAFKA:-}" ] || return 1
        ! docker info >/dev/null 2>&1
        ;;
    *) return 1 ;;
    esac
}

if wants_jvm "${1:-}"; then
    instead=
    [ "$1" = jvm ] || instead=", or start Docker, or name a running Kafka in STREAMSCHED_TEST_KAFKA=host:port"
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    if [ "${major:-0}" -lt 17 ]; then
        lacks "Java 17 or newer, which runs Apache Kafka (found: ${major:-none})" \
            "install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME$instead"
    fi
    if ! command -v mvn >/dev/null 2>&1; then
        lacks "Maven, which fetches Apache Kafka" "install it (Debian: apt-get install maven)$instead"
    fi
fi

exit "$missing"
