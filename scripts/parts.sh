# Sourced by the scripts that run many parts: each part under a time limit, its time printed, all of them run, and what
# failed named at the end, with the last it said.
#
#   part NAME SECONDS COMMAND...         runs COMMAND, killed after SECONDS
#   part_beside NAME SECONDS COMMAND...  begins it, beside the parts that follow; one at a time
#   part_await                           waits for that one, and prints what it said
#   parts_end                            prints the table of times; the status is 1 if a part failed
PARTS=()
FAILED=()
LAST_WORDS=()
BESIDE=()

part() {
  local start=$SECONDS log
  log=$(mktemp)
  echo "== $1"
  timeout --kill-after=20 "$2" "${@:3}" 2>&1 | tee "$log"
  part_ended "$1" "$2" "${PIPESTATUS[0]}" "$start" "$log"
}

part_beside() {
  local log
  log=$(mktemp)
  echo "== $1, beside what follows"
  timeout --kill-after=20 "$2" "${@:3}" >"$log" 2>&1 &
  BESIDE=("$!" "$1" "$2" "$SECONDS" "$log")
}

part_await() {
  local status
  wait "${BESIDE[0]}"
  status=$?
  echo "== ${BESIDE[1]}"
  cat "${BESIDE[4]}"
  part_ended "${BESIDE[1]}" "${BESIDE[2]}" "$status" "${BESIDE[3]}" "${BESIDE[4]}"
  BESIDE=()
}

# NAME, LIMIT, STATUS, the time at which it began, and the file of what it said.
part_ended() {
  local result=ok
  case $3 in
    0) ;;
    124 | 137) result="TIMED OUT after $2 s" ;;
    *) result="FAILED ($3)" ;;
  esac
  if [ "$result" != ok ]; then
    FAILED+=("$1")
    LAST_WORDS+=("== the last of: $1" "$(tail -n 60 "$5")")
  fi
  rm -f "$5"
  PARTS+=("$(printf '%6d s  %-36s %s' $((SECONDS - $4)) "$1" "$result")")
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
