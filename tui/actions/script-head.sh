set -eu
exec 3<&0
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH DEBIAN_FRONTEND=noninteractive
{root}
folder=${{XDG_STATE_HOME:-$HOME/.local/state}}/gdrtop
if [ "$(id -u)" -eq 0 ]; then folder=/var/log/gdrtop; fi
progress=$folder/script-{name}
boot=$(cat /proc/sys/kernel/random/boot_id)
step=1 begun=$boot waiting=0
if [ -r "$progress" ]; then read -r step begun waiting < "$progress"; fi
if [ $# -gt 0 ]; then
    step=$1 waiting=0
elif [ "$begun" != "$boot" ]; then
    echo {rebooted} >&2
    exit 2
fi
case $step in '' | *[!0-9]*) echo "The argument is the number of the step to begin with." >&2; exit 3 ;; esac
reached() {{
    step=$1
    mkdir -p "$folder"
    echo "$1 $boot ${{2:-0}}" > "$progress"
}}
by_hand() {{
    if [ "$waiting" -eq "$1" ] && [ -t 3 ]; then
        printf 'Are the steps from %s on done, which only you can do? (y/n) ' "$1"
        read -r answer <&3
        if [ "$answer" = y ]; then
            cat > /dev/null
            reached "$2"
            return
        fi
    fi
    cat >&2
    reached "$1" "$1"
    if [ "$2" -eq 0 ]; then rm -f "$progress"; fi
    exit 2
}}
