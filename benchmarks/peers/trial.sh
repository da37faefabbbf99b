#!/bin/bash
# One trial: ./trial.sh SECONDS INDEX. It appends its start and its end to trials.log beside it and waits between them;
# if there is train.py beside it, it runs ./train.py SECONDS INDEX instead of waiting (SECONDS is a number of blocks).
# A trial for which there is a file crash-INDEX fails once, halfway. One that succeeds leaves the file done/INDEX.
here=${TRIAL_LOG:-$0} here=${here%/*}
seconds=$1 index=$2
read -r host < /proc/sys/kernel/hostname # bash keeps the HOSTNAME that a job script has exported
log() { echo "$1 $index $EPOCHREALTIME $host ${CUDA_VISIBLE_DEVICES:--} $$" >> "$here/trials.log"; }

log start
if [ -e "$here/crash-$index" ] && rm "$here/crash-$index" 2> /dev/null; then
  sleep "$(awk "BEGIN {print $seconds / 2}")"
  log crash
  exit 1
elif [ -e "$here/train.py" ]; then
  OMP_NUM_THREADS=1 "$here/train.py" "$seconds" "$index" || { log crash; exit 1; }
else
  sleep "$seconds"
fi
: > "$here/done/$index"
log end
