#!/usr/bin/env bash
# Brings up what the tests need: PostgreSQL, MariaDB and RabbitMQ on their standard local ports.
#
# Uses servers that answer there already; starts the others by docker compose where an engine
# answers, else by Debian's packages. Safe to run twice. A service whose address is set in the
# environment (ACEMQ_TEST_POSTGRES, ACEMQ_TEST_MYSQL, ACEMQ_TEST_AMQP, whose
# management API is ACEMQ_TEST_MANAGEMENT) is left to its owner.
set -euo pipefail
cd "$(dirname "$0")"

readonly WAIT_SECONDS="${ACEMQ_SERVICES_WAIT:-120}"

say() { printf 'services: %s\n' "$*"; }
fail() {
    printf 'services: FAILED: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

address() {
    case "$1" in
        postgres) echo "${ACEMQ_TEST_POSTGRES:-postgres://postgres@127.0.0.1:5432/test}" ;;
        mariadb) echo "${ACEMQ_TEST_MYSQL:-mysql://root@127.0.0.1:3306/test}" ;;
        rabbitmq) echo "${ACEMQ_TEST_AMQP:-amqp://guest:guest@127.0.0.1:5672/%2f}" ;;
    esac
}

is_given() {
    case "$1" in
        postgres) [[ -n "${ACEMQ_TEST_POSTGRES:-}" ]] ;;
        mariadb) [[ -n "${ACEMQ_TEST_MYSQL:-}" ]] ;;
        rabbitmq) [[ -n "${ACEMQ_TEST_AMQP:-}" ]] ;;
    esac
}

# --- does a server answer? -----------------------------------------------------------------------

# Sends bytes to a local port and prints the first COUNT bytes of the answer in hex. Needs no
# client, and tells a listening server from one that is ready to talk.
ask() {
    local port=$1 count=$2 bytes=$3
    timeout 3 bash -c '
        exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
        printf "$3" >&3
        head -c "$2" <&3 | od -An -tx1 | tr -d " \n"
    ' ask "$port" "$count" "$bytes" 2>/dev/null || true
}

answers() {
    case "$1" in
        # "May I use TLS?" is answered by S or N.
        postgres) [[ "$(ask 5432 1 '\0\0\0\10\4\322\26\57')" =~ ^(53|4e)$ ]] ;;
        # The server speaks first: length, number 0, protocol 10; or an error, where it knows no
        # user from this address yet.
        mariadb) [[ "$(ask 3306 5 '')" =~ ^......00(0a|ff)$ ]] ;;
        # The protocol header is answered by a method frame.
        rabbitmq) [[ "$(ask 5672 1 'AMQP\0\0\11\1')" == 01 ]] ;;
    esac
}

wait_for() {
    local service=$1 deadline=$((SECONDS + WAIT_SECONDS))
    until answers "$service"; do
        ((SECONDS < deadline)) || fail "$service does not answer after $WAIT_SECONDS s"
        sleep 1
    done
    say "$service answers"
}

# --- starting by docker compose ------------------------------------------------------------------

engine_answers() {
    have docker && docker compose version >/dev/null 2>&1 && timeout 20 docker info >/dev/null 2>&1
}

start_by_compose() {
    say "starting by docker compose: $*"
    docker compose --file compose.yaml up --detach "$@"
}

# --- starting by Debian's packages ---------------------------------------------------------------

as_root() {
    if [[ "$(id -u)" == 0 ]]; then "$@"; elif have sudo; then sudo "$@"; else
        fail "needs root or sudo for: $*"
    fi
}

has_systemd() { [[ -d /run/systemd/system ]]; }

# Installs a package that is not there, and gives what its installation starts time to answer.
install_package() {
    local package=$1 program=$2 service=$3 round
    if have "$program" || [[ -x "/usr/sbin/$program" ]]; then
        return
    fi
    have apt-get || fail "no container engine answers and there is no apt-get: start $package by hand"
    say "installing $package"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package" ||
        fail "could not install $package"
    for round in {1..10}; do
        answers "$service" && return
        sleep 1
    done
    say "$package is installed, but did not start within $round s"
}

start_postgres() {
    install_package postgresql pg_ctlcluster postgres
    local version name port status rest
    if ! pg_lsclusters --no-header | awk '$3 == 5432 { found = 1 } END { exit !found }'; then
        version=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -V | tail -n 1)
        as_root pg_createcluster --port 5432 "$version" acemq
    fi
    # shellcheck disable=SC2034
    read -r version name port status rest < <(pg_lsclusters --no-header | awk '$3 == 5432')
    if [[ "$status" != online* ]]; then
        say "starting PostgreSQL cluster $version/$name"
        as_root pg_ctlcluster "$version" "$name" start
    fi
}

start_mariadb() {
    install_package mariadb-server mariadbd mariadb
    answers mariadb && return
    say "starting MariaDB"
    if has_systemd; then
        as_root systemctl start mariadb
    else
        as_root install -d -o mysql -g mysql /run/mysqld
        as_root setsid --fork mariadbd --user=mysql --bind-address=127.0.0.1 >/dev/null 2>&1 </dev/null
    fi
}

start_rabbitmq() {
    install_package rabbitmq-server rabbitmq-server rabbitmq
    answers rabbitmq && return
    say "starting RabbitMQ"
    if has_systemd; then
        as_root systemctl start rabbitmq-server
    else
        as_root rabbitmq-server -detached
    fi
}

# --- a database to test in -----------------------------------------------------------------------

postgres_does() { psql --no-psqlrc --quiet --no-password --dbname "postgres://postgres@127.0.0.1:5432/$1" --command "$2"; }
mariadb_client() { if have mariadb; then mariadb "$@"; else mysql "$@"; fi; }
mariadb_does() { mariadb_client --no-defaults --protocol=tcp --host=127.0.0.1 --port=3306 --user=root --execute "$1"; }

# Lets user postgres in from this machine without a password, on a server of Debian's package.
open_postgres() {
    local version name rest hba
    have pg_lsclusters || return 0
    # shellcheck disable=SC2034
    read -r version name rest < <(pg_lsclusters --no-header | awk '$3 == 5432') || return 0
    hba="/etc/postgresql/$version/$name/pg_hba.conf"
    say "adding a line to $hba: user postgres comes in from 127.0.0.1 without a password"
    as_root sed -i '1i host all postgres 127.0.0.1/32 trust' "$hba"
    as_root pg_ctlcluster "$version" "$name" reload
    sleep 1
}

# The same for MariaDB, whose root is known by its socket only after an installation.
open_mariadb() {
    say "letting MariaDB's root in from 127.0.0.1 without a password"
    as_root mariadb --execute "
        ALTER USER root@localhost IDENTIFIED VIA unix_socket OR mysql_native_password USING PASSWORD('');
        CREATE USER IF NOT EXISTS root@127.0.0.1 IDENTIFIED BY '';
        GRANT ALL PRIVILEGES ON *.* TO root@127.0.0.1 WITH GRANT OPTION;" || true
}

prepare_postgres() {
    have psql || { say "no psql here to look into $(address postgres)"; return; }
    if ! postgres_does postgres 'SELECT 1' >/dev/null 2>&1; then
        [[ "$1" == started ]] && open_postgres
        postgres_does postgres 'SELECT 1' >/dev/null ||
            fail "PostgreSQL wants a password for user postgres; set ACEMQ_TEST_POSTGRES to an address that works"
    fi
    if ! postgres_does test 'SELECT 1' >/dev/null 2>&1; then
        postgres_does postgres 'CREATE DATABASE test'
        say "created the PostgreSQL database test"
    fi
}

prepare_mariadb() {
    have mariadb || have mysql || { say "no client here to look into $(address mariadb)"; return; }
    if ! mariadb_does 'SELECT 1' >/dev/null 2>&1; then
        [[ "$1" == started ]] && open_mariadb
        mariadb_does 'SELECT 1' >/dev/null ||
            fail "MariaDB wants a password for root; set ACEMQ_TEST_MYSQL to an address that works"
    fi
    mariadb_does 'CREATE DATABASE IF NOT EXISTS test'
}

management_answers() { [[ "$(ask 15672 4 'GET / HTTP/1.0\r\n\r\n')" == 48545450 ]]; }

# Whoever has the right port and speaks the protocol lets guest in from this machine. Its management
# API comes with the container, and with Debian's package once the plugin is enabled.
prepare_rabbitmq() {
    local deadline=$((SECONDS + WAIT_SECONDS))
    management_answers && return
    if have rabbitmq-plugins || [[ -x /usr/sbin/rabbitmq-plugins ]]; then
        say "enabling RabbitMQ's management plugin"
        as_root rabbitmq-plugins enable rabbitmq_management >/dev/null
    fi
    until management_answers; do
        ((SECONDS < deadline)) ||
            fail "RabbitMQ's management API does not answer on port 15672: enable the plugin rabbitmq_management"
        sleep 1
    done
}

# --- the whole -----------------------------------------------------------------------------------

missing=()
for service in postgres mariadb rabbitmq; do
    if is_given "$service"; then
        say "$service: given by the environment"
    elif answers "$service"; then
        say "$service: answers already"
        "prepare_$service" found
    else
        missing+=("$service")
    fi
done

if ((${#missing[@]} > 0)) && engine_answers; then
    start_by_compose "${missing[@]}"
    for service in "${missing[@]}"; do
        wait_for "$service"
        "prepare_$service" found
    done
else
    for service in "${missing[@]}"; do
        "start_$service"
        wait_for "$service"
        "prepare_$service" started
    done
fi

for service in postgres mariadb rabbitmq; do
    is_given "$service" || say "$service: $(address "$service")"
done
