#!/usr/bin/env bash
# A RabbitMQ 4 beside the standing broker, for the runs that docs/compatibility.md reports.
#
#   scripts/rabbitmq4.sh start     brings it up, and says which version answers
#   scripts/rabbitmq4.sh run CMD   runs a command with the tests' variables pointing at it
#   scripts/rabbitmq4.sh ctl ARGS  its rabbitmqctl
#   scripts/rabbitmq4.sh status    says whether it answers, and which version it is
#   scripts/rabbitmq4.sh stop      stops it; its data go with it
#   scripts/rabbitmq4.sh remove    stops it and removes the folder that `start` unpacked
#
# By docker compose where an engine answers; else, as root on Debian, from the next release: unpacked
# by debootstrap from the mirror that apt uses here into $ACEMQ_RABBITMQ4_ROOT and started there by
# chroot. Its node name, ports, port mapper and data are its own, so the standing broker, other
# nodes on this machine and their data never meet it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

readonly ROOT="${ACEMQ_RABBITMQ4_ROOT:-${TMPDIR:-/tmp}/acemq-rabbitmq4}"
readonly SUITE="${ACEMQ_RABBITMQ4_SUITE:-trixie}"
readonly PORT="${ACEMQ_RABBITMQ4_PORT:-5673}"
readonly MANAGEMENT_PORT=$((PORT + 10000)) CLUSTER_PORT=$((PORT + 20000))
readonly MAPPER_PORT="${ACEMQ_RABBITMQ4_MAPPER_PORT:-4370}"
readonly WAIT_SECONDS="${ACEMQ_SERVICES_WAIT:-120}"
readonly MARK="$ROOT/.acemq-rabbitmq4"
readonly LOG="$ROOT/var/log/rabbitmq/start.log"

say() { printf 'rabbitmq4: %s\n' "$*" >&2; }
fail() {
    printf 'rabbitmq4: FAILED: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Whether a broker answers the protocol header with a method frame.
answers() {
    [[ "$(timeout 3 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "AMQP\0\0\11\1" >&3 &&
        head -c 1 <&3 | od -An -tx1' ask "$PORT" 2>/dev/null)" == *01* ]]
}

# --- docker compose ------------------------------------------------------------------------------

engine_answers() {
    have docker && docker compose version >/dev/null 2>&1 && timeout 20 docker info >/dev/null 2>&1
}

compose() {
    ACEMQ_RABBITMQ4_PORT=$PORT ACEMQ_RABBITMQ4_MANAGEMENT_PORT=$MANAGEMENT_PORT \
        docker compose --file "$here/compose.yaml" --profile rabbitmq4 "$@"
}

# --- the next Debian release in a folder ----------------------------------------------------------

# The mirror of Debian's own packages in apt's configuration.
mirror() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}

unpack() {
    [[ -s "$MARK" ]] && return
    have apt-get || fail "no container engine answers and there is no apt-get: no way to get RabbitMQ 4"
    if ! have debootstrap; then
        say "installing debootstrap"
        env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap >&2 ||
            fail "could not install debootstrap"
    fi
    local from
    from=$(mirror)
    [[ -n "$from" ]] || fail "apt knows no mirror of Debian"
    # An unpacking that was cut short starts again; anybody else's folder stays as it is.
    if [[ -e "$ROOT" && ! -e "$MARK" ]]; then
        [[ -z "$(ls -A -- "$ROOT")" ]] || fail "$ROOT holds something else; set ACEMQ_RABBITMQ4_ROOT"
    fi
    say "unpacking $SUITE into $ROOT"
    rm -rf -- "$ROOT"
    mkdir -p -- "$ROOT"
    touch -- "$MARK"
    debootstrap --variant=minbase "$SUITE" "$ROOT" "$from" >"$ROOT.log" 2>&1 ||
        fail "debootstrap, see $ROOT.log"
    # Packages start nothing: this node is started below, under its own name.
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d"
    chmod 755 "$ROOT/usr/sbin/policy-rc.d"
    inside env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends rabbitmq-server >>"$ROOT.log" 2>&1 ||
        fail "could not install rabbitmq-server in $ROOT, see $ROOT.log"
    rm -f -- "$ROOT.log"
    echo "$SUITE, unpacked by $(basename "$0")" >"$MARK"
}

# Runs a command in the folder, with a /proc that goes away with it.
inside() {
    unshare --mount --propagation private sh -c '
        root=$1
        shift
        mount -t proc proc "$root/proc" && exec chroot "$root" "$@"' inside "$ROOT" "$@"
}

# The variables make every tool in the folder talk to this node only.
as_node() {
    inside env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        HOME=/var/lib/rabbitmq ERL_EPMD_PORT="$MAPPER_PORT" ERL_EPMD_ADDRESS=127.0.0.1 \
        RABBITMQ_NODENAME=acemq4@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
        RABBITMQ_NODE_PORT="$PORT" RABBITMQ_DIST_PORT="$CLUSTER_PORT" "$@"
}

# What the next versions will refuse is refused now, so that nothing here leans on it.
configure() {
    local settings="$ROOT/etc/rabbitmq"
    mkdir -p -- "$settings"
    printf '%s\n' "management.tcp.ip = 127.0.0.1" "management.tcp.port = $MANAGEMENT_PORT" \
        'disk_free_limit.absolute = 100MB' \
        'deprecated_features.permit.transient_nonexcl_queues = false' \
        'deprecated_features.permit.global_qos = false' >"$settings/rabbitmq.conf"
    printf '[{kernel, [{inet_dist_use_interface, {127,0,0,1}}]}].\n' >"$settings/advanced.config"
    printf '[rabbitmq_management].\n' >"$settings/enabled_plugins"
    grep -q localhost "$ROOT/etc/hosts" 2>/dev/null || printf '127.0.0.1 localhost\n' >>"$ROOT/etc/hosts"
}

start_in_folder() {
    [[ "$(id -u)" == 0 ]] || fail "chroot needs root"
    unpack
    configure
    mkdir -p -- "$(dirname "$LOG")"
    as_node setsid --fork rabbitmq-server >"$LOG" 2>&1 </dev/null
}

stop_in_folder() {
    [[ -x "$ROOT/usr/sbin/rabbitmqctl" ]] || return 0
    if answers; then
        as_node rabbitmqctl --quiet stop >&2 || fail "rabbitmqctl stop"
    fi
    local deadline=$((SECONDS + WAIT_SECONDS))
    while answers && ((SECONDS < deadline)); do sleep 1; done
    as_node epmd -port "$MAPPER_PORT" -kill >/dev/null 2>&1 || true
    rm -rf -- "$ROOT/var/lib/rabbitmq/mnesia"
}

# --- the commands --------------------------------------------------------------------------------

ctl() { if engine_answers; then compose exec -T rabbitmq4 rabbitmqctl "$@"; else as_node rabbitmqctl "$@"; fi; }

start() {
    if answers; then
        say "answers already"
    elif engine_answers; then
        compose up --detach rabbitmq4 >&2
    else
        start_in_folder
    fi
    local deadline=$((SECONDS + WAIT_SECONDS))
    until answers; do
        ((SECONDS < deadline)) || fail "nothing answers on port $PORT after $WAIT_SECONDS s, see $LOG"
        sleep 1
    done
    ctl --quiet await_startup >&2
    status
}

status() {
    answers || fail "nothing answers on port $PORT"
    printf 'RabbitMQ %s at %s\n' "$(ctl --quiet version)" "$(url)"
}

stop() { if engine_answers; then compose rm --stop --force --volumes rabbitmq4 >&2; else stop_in_folder; fi; }

url() { echo "amqp://guest:guest@127.0.0.1:$PORT/%2f"; }

run() {
    answers || fail "nothing answers on port $PORT; $0 start brings it up"
    env ACEMQ_TEST_MANAGEMENT="http://guest:guest@127.0.0.1:$MANAGEMENT_PORT" ACEMQ_TEST_AMQP="$(url)" ACEMQ_URL="$(url)" ACEMQ_TEST_RABBITMQCTL="$here/rabbitmq4.sh ctl" "$@"
}

case "${1:-}" in
    start | status | stop) "$1" ;;
    remove)
        stop
        [[ ! -e "$MARK" ]] || rm -rf -- "$ROOT"
        ;;
    run | ctl) "$@" ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
