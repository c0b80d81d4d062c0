# Sourced by the scripts that run many parts: each part under a time limit, its time printed, all of them run, and what
# failed named at the end, with the last it said.
#
#   part NAME SECONDS COMMAND...     runs COMMAND, killed after SECONDS
#   parts_end                        prints the table of times; the status is 1 if a part failed
PARTS=()
FAILED=()
LAST_WORDS=()

part() {
  local name=$1 limit=$2 start=$SECONDS result=ok status log
  log=$(mktemp)
  echo "== $name"
  timeout --kill-after=20 "$limit" "${@:3}" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  case $status in
    0) ;;
    124 | 137) result="TIMED OUT after $limit s" ;;
    *) result="FAILED ($status)" ;;
  esac
  if [ "$result" != ok ]; then
    FAILED+=("$name")
    LAST_WORDS+=("== the last of: $name" "$(tail -n 60 "$log")")
  fi
  rm -f "$log"
  PARTS+=("$(printf '%6d s  %-36s %s' $((SECONDS - start)) "$name" "$result")")
  echo "${PARTS[-1]}"
}

parts_end() {
  echo "== times"
  printf '%s\n' "${PARTS[@]}"
  if [ ${#FAILED[@]} -gt 0 ]; then
    printf '%s\n' "${LAST_WORDS[@]}"
    printf 'FAILED: %s\n' "${FAILED[@]}"
    return 1
  fi
  echo "all passed"
}
