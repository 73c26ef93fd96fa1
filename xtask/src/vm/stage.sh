# Runs in the virtual machine, as its process 1, with this machine's files read-only at /.
# The environment contains KERNEL_DIR, JOBS, TEST_DEADLINE and NETWRIGHT_FULL (empty except in a
# full run).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8
export NETWRIGHT_VM=1 RUST_BACKTRACE=0
[ -n "$NETWRIGHT_FULL" ] || unset NETWRIGHT_FULL

# Runs one job and prints its result in one line and, if it matters, its output, all in one piece. A
# test that fails is tried once more, as on the host. The shell is busybox's, with most commands
# built in: a dynamic program takes a tenth of a second to start here.
if [ "$1" = job ]; then
    directory=$2 program=$3 name=$4 output=/tmp/output.$$
    cd "$directory" || exit
    export CARGO_MANIFEST_DIR=$directory
    if [ "$program" = - ]; then
        bash -c "$name"
        exit 0
    fi
    try() {
        read -r start _ </proc/uptime # in hundredths of a second
        timeout -k 5 "$TEST_DEADLINE" "$program" --exact "$name" --nocapture >"$output" 2>&1 </dev/null
        status=$?
        read -r end _ </proc/uptime
        time=$(((${end%.*}${end#*.} - ${start%.*}${start#*.}) * 10))
    }
    passed=PASS
    try
    if [ $status != 0 ]; then
        passed=FLAKY
        {
            flock 9
            echo "@try FAIL $time ${directory##*/} $name"
            cat "$output"
        } 9>>/run/output.lock
        try
    fi
    if [ $status != 0 ]; then result=FAIL; elif grep -q 'SKIP ' "$output"; then result=SKIP; else result=$passed; fi
    {
        flock 9
        echo "@test $result $time ${directory##*/} $name"
        [ $result != FAIL ] || cat "$output"
        [ $result != SKIP ] || grep 'SKIP ' "$output"
        case $result in PASS | FLAKY) grep 'MEASURED ' "$output" ;; esac
    } 9>>/run/output.lock
    rm -f "$output"
    exit 0
fi

ulimit -n 65536 # as a service manager sets it; the kernel gives the first process 1024
mount -t sysfs sysfs /sys
mount -t tracefs tracefs /sys/kernel/tracing
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mkdir -p /dev/shm /dev/pts /run/lock
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup

# The kernel uses this to load modules by itself, from where they are unpacked.
printf '#!/bin/sh\nexec /usr/sbin/modprobe -d "%s" "$@"\n' "$KERNEL_DIR" >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
# Before the first test takes a snapshot: a module loaded later adds sysctls.
/run/modprobe -qa 8021q bond br_netfilter bridge dummy geneve ifb ip6_tables ip_tables ip_vs ip_vs_rr ipvlan macvlan nf_conntrack \
    nf_conntrack_netlink nf_nat nf_tables nft_chain_nat nft_compat nft_ct nft_fib_inet nft_masq nft_nat tun veth virtio_net vrf vxlan \
    act_mirred cls_bpf cls_matchall cls_u32 sch_fq_codel sch_htb sch_ingress sch_netem sch_prio sch_tbf
ip link set lo up
# The state in which Docker, Kubernetes and systemd leave a machine: no test may rely on what a new
# namespace inherits from it.
echo 1 >/proc/sys/net/core/devconf_inherit_init_net # of IPv6 too
for key in ipv4/ip_forward ipv6/conf/all/forwarding ipv4/conf/default/promote_secondaries ipv4/conf/all/route_localnet; do
    echo 1 >"/proc/sys/net/$key"
done
for key in ipv4/conf/all/rp_filter ipv4/conf/default/rp_filter ipv6/conf/default/use_tempaddr; do
    echo 2 >"/proc/sys/net/$key"
done
for key in ipv4/conf/all/send_redirects ipv6/conf/default/accept_ra ipv6/conf/default/autoconf; do
    echo 0 >"/proc/sys/net/$key"
done
echo @up
(while sleep 20; do echo @alive; done) & # a test may take minutes
xargs -d '\n' -n 3 -P "$(nproc)" /bin/busybox sh "$0" job <"$JOBS" 2>&1
echo @done
sleep 0.3 # until that is out: what the kernel says goes first
echo o >/proc/sysrq-trigger
while :; do :; done # the root file system is gone: no program can be started
