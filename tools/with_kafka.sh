#!/usr/bin/env bash
# Runs a command with a Kafka node and a Redis server of its own; both end with it, and its exit status is ours.
#
#   with_kafka.sh CMD [ARG…]
#
# CMD finds them in TEST_KAFKA_BOOTSTRAP and TEST_REDIS_URL; one that is set already is used as it is.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kafka=$here/../deploy/kafka/kafka.sh
redis=$here/redis.sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/with-kafka.XXXXXX")

clean_up() {
  "$kafka" stop "$dir/kafka" || true
  "$redis" stop "$dir/redis" || true
  rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -z "${TEST_KAFKA_BOOTSTRAP:-}" ]; then
  said=$("$kafka" start "$dir/kafka")
  export TEST_KAFKA_BOOTSTRAP=${said#BOOTSTRAP=}
fi
if [ -z "${TEST_REDIS_URL:-}" ]; then
  said=$("$redis" start "$dir/redis")
  export TEST_REDIS_URL=${said#REDIS_URL=}
fi
"$@"
