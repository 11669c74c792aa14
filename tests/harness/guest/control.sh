#!/bin/sh
# Runs commands for the tests. A line "ID SCRIPT INPUT" comes, with the lengths of a script and of its standard input, and both
# behind it; the script is run beside all others. When it has ended, the line "ID CODE OUTPUT ERRORS" is the answer, both
# texts in base64 ("-" for an empty one), so that an answer that a reboot cuts off ends with its line. Until then they
# stand in /run/jobs/ID.out and ID.err, and the script's process id in ID.pid.
export PATH=/bin:/usr/sbin:/usr/bin HOME=/root
# Else the C library looks for a file each time that a tool prints the time, and the tools see it.
export TZ=UTC0
cd /root || exit

# receive LENGTH FILE: not a byte more, as those are the next request's.
receive() {
    : >"$2"
    [ "$1" = 0 ] || dd bs="$1" count=1 iflag=fullblock <&3 >"$2" 2>/dev/null
}

packed() {
    if [ -s "$1" ]; then base64 -w 0 "$1"; else printf '-'; fi
}

run() {
    job=/run/jobs/$1
    sh "$job.sh" <"$job.in" >"$job.out" 2>"$job.err" 3>&- &
    echo $! >"$job.pid"
    wait $!
    code=$?
    # One answer at a time.
    (
        flock 9
        printf '%s %s %s %s\n' "$1" "$code" "$(packed "$job.out")" "$(packed "$job.err")" >&3
    ) 9>/run/jobs/lock
    rm "$job".*
}

exec 3<>/dev/virtio-ports/control
# What a guest before this one began to say ends here.
printf '\nhello\n' >&3
while read -r id script input <&3; do
    receive "$script" "/run/jobs/$id.sh"
    receive "$input" "/run/jobs/$id.in"
    run "$id" &
done
