#!/usr/bin/env bash
# One Kafka node (broker and controller in one process, no ZooKeeper) on loopback, for development and tests.
#
#   kafka.sh start DIR [PORT]   start it with data, log and pid in DIR; prints BOOTSTRAP=127.0.0.1:PORT
#   kafka.sh stop DIR           stop it: TERM, 10 s later KILL
#   kafka.sh status DIR         say whether it runs (exit 0) or not (exit 1)
#
# A DIR that was started before keeps its ports and its data. Exit 2: wrong usage. Exit 3: Java or Maven is missing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/pom.xml")
lib=${XDG_CACHE_HOME:-$HOME/.cache}/delivery-kafka/$version/lib
start_limit_s=60
stop_limit_s=10

say() { printf 'kafka.sh: %s\n' "$*" >&2; }

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

need_java() {
  local words major
  if ! words=$(java -version 2>&1); then
    say "Java 17 or newer is needed and there is no working 'java' on PATH (Debian: apt-get install openjdk-17-jre-headless)"
    exit 3
  fi
  major=$(sed -n 's/.*version "\([0-9]*\).*/\1/p' <<<"$words" | head -n 1)
  if [ "${major:-0}" -lt 17 ]; then
    say "Java 17 or newer is needed; 'java' on PATH is version ${major:-unknown}"
    exit 3
  fi
}

# Copies the jars once. Two at once are fine: each fills a folder of its own and the first rename wins.
fetch_jars() {
  local parent filling
  [ -d "$lib" ] && return
  if ! command -v mvn >/dev/null; then
    say "Maven is needed once, to fetch Kafka $version, and there is no 'mvn' on PATH (Debian: apt-get install maven)"
    exit 3
  fi
  say "fetching Kafka $version (once) into $lib"
  parent=$(dirname "$lib")
  mkdir -p "$parent"
  filling=$(mktemp -d "$parent/filling.XXXXXX")
  if ! mvn -q -B -Dstyle.color=never -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$filling" >&2; then
    rm -rf "$filling"
    say "Maven could not fetch Kafka $version"
    exit 1
  fi
  [ -d "$lib" ] || mv "$filling" "$lib"
  # The loser of a race either still has its folder or moved it into the winner's.
  rm -rf "$filling" "$lib/$(basename "$filling")"
}

port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the range that systems hand to outgoing connections (32768 on Linux), so that a stopped node's port stays free.
free_port() {
  local port
  while :; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    [ "$port" = "${1:-}" ] && continue
    port_answers "$port" || break
  done
  echo "$port"
}

# The command line of the process with this pid; empty if there is none.
command_of() {
  if [ -r "/proc/$1/cmdline" ]; then
    tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null || true
  else
    ps -ww -o args= -p "$1" 2>/dev/null || true
  fi
}

# Prints the pid of this DIR's node if it runs; never one of another process that got the same pid later.
running_pid() {
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ && $(command_of "$pid") == *"$dir"*server.properties* ]] || return 1
  echo "$pid"
}

write_properties() {
  cat >"$dir/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$2
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2
advertised.listeners=PLAINTEXT://127.0.0.1:$1
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/data
# One node: nothing can be replicated.
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# Fewer internal partitions (the defaults are 50) make starts and stops quick.
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1
# A killed broker may register again only when its former session has ended: 4 s, not 9.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
num.partitions=3
auto.create.topics.enable=true
group.initial.rebalance.delay.ms=0
# Tests of retention need not wait for the default of five minutes.
log.retention.check.interval.ms=1000
PROPERTIES
}

kafka_tool() {
  java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dlog4j2.configurationFile="$here/log4j2.xml" -cp "$lib/*" "$@"
}

format_storage() {
  local id
  [ -f "$dir/data/meta.properties" ] && return
  id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'AA' | cut -c 1-22)
  kafka_tool kafka.tools.StorageTool format --cluster-id "$id" --config "$dir/server.properties" >>"$dir/kafka.log" 2>&1
}

launch() {
  local detach=nohup
  command -v setsid >/dev/null && detach=setsid
  # The inner shell writes its own pid and becomes the node, so the pid is right whether or not setsid forks.
  $detach bash -c 'echo $$ >"$1/pid"; exec java -Xms256m -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 \
    -Dlog4j2.configurationFile="$2/log4j2.xml" -cp "$3/*" kafka.Kafka "$1/server.properties"' \
    kafka "$dir" "$here" "$lib" </dev/null >>"$dir/kafka.log" 2>&1 &
  disown
}

# Waits until the broker has registered itself and answers a client. $1: port.
wait_ready() {
  local end=$((SECONDS + start_limit_s))
  while [ ! -s "$dir/pid" ] && [ $SECONDS -lt $end ]; do sleep 0.05; done
  while [ $SECONDS -lt $end ]; do
    # Not `kill -0`: a process that ended may stay as a zombie where nobody waits for it.
    running_pid >/dev/null || return 1
    if port_answers "$1" && kafka_tool org.apache.kafka.tools.ClusterTool list-endpoints \
      --bootstrap-server "127.0.0.1:$1" 2>/dev/null | grep -w "$1" >/dev/null; then
      return 0
    fi
    sleep 0.2
  done
  return 1
}

start_once() {
  local port=$1 controller=$2
  write_properties "$port" "$controller"
  rm -f "$dir/pid"
  format_storage || return 1
  launch
  wait_ready "$port" || return 1
  echo "$port $controller" >"$dir/ports"
}

start() {
  local wanted=${1:-} port controller try
  need_java
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd -P)
  fetch_jars
  if [ -f "$dir/ports" ]; then
    read -r port controller <"$dir/ports"
    if [ -n "$wanted" ] && [ "$wanted" != "$port" ]; then
      say "$dir belongs to a node on port $port, so it cannot be started on port $wanted"
      exit 2
    fi
    if running_pid >/dev/null && wait_ready "$port"; then
      echo "BOOTSTRAP=127.0.0.1:$port"
      return
    fi
    wanted=$port
  fi
  # Another process may take a port between the look and the start: then try others.
  for try in 1 2 3; do
    port=${wanted:-$(free_port)}
    if port_answers "$port"; then
      say "port $port is in use by another process"
      exit 1
    fi
    [ -n "${controller:-}" ] && [ "$try" = 1 ] || controller=$(free_port "$port")
    if start_once "$port" "$controller"; then
      echo "BOOTSTRAP=127.0.0.1:$port"
      return
    fi
    stop
    grep -q 'BindException\|Address already in use' "$dir/kafka.log" || break
  done
  say "Kafka did not start within $start_limit_s s; the end of $dir/kafka.log:"
  tail -n 20 "$dir/kafka.log" >&2 || true
  exit 1
}

stop() {
  local pid end=$((SECONDS + stop_limit_s))
  if pid=$(running_pid); then
    kill -TERM "$pid" 2>/dev/null || true
    while running_pid >/dev/null && [ $SECONDS -lt $end ]; do sleep 0.1; done
    if pid=$(running_pid); then
      say "the node did not stop within $stop_limit_s s and was killed"
      kill -KILL "$pid" 2>/dev/null || true
      while running_pid >/dev/null; do sleep 0.1; done
    fi
  fi
  rm -f "$dir/pid"
}

status() {
  local pid
  if pid=$(running_pid); then
    echo "running pid=$pid BOOTSTRAP=127.0.0.1:$(cut -d ' ' -f 1 "$dir/ports")"
  else
    echo "not running"
    return 1
  fi
}

[ $# -ge 2 ] || usage
action=$1
dir=$2
shift 2
[ ! -d "$dir" ] || dir=$(cd "$dir" && pwd -P)
case $action in
  start) start "$@" ;;
  stop) stop ;;
  status) status ;;
  *) usage ;;
esac
