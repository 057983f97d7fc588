# sh lab.sh HOST ... : the sweep runs here, and its trials on hosts that share this folder.
for host in "$@"; do
  ssh "$host" "cd '$PWD' && hpsearch agent runs/lab" &
done
hpsearch run sweep.yaml --backend agents --dir runs/lab
wait
