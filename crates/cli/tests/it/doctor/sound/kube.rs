//! The rules of programs that run on nodes of Kubernetes.
//!
//! Each text was written for this test, after the source that its comment names. The chains, their
//! hooks, and the order and kind of their rules are those that the program makes. Addresses, ports
//! and the hashes in names are made up. Sets of iptables (`ipset`) are replaced by prefixes.

use testkit::{Lab, Place as _};

use super::kinds::{nft, restore};

/// As kube-proxy's `pkg/proxy/nftables/proxier.go` makes it, for a service with two endpoints and a
/// port of the node, and one without endpoints.
const PROXY_NFTABLES: &str = r#"
table ip kube-proxy {
  comment "rules for kube-proxy"
  set cluster-ips {
    type ipv4_addr
    elements = { 10.96.0.10, 10.96.0.11 }
  }
  set nodeport-ips {
    type ipv4_addr
    elements = { 198.51.100.1 }
  }
  map no-endpoint-services {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.11 . tcp . 80 : goto reject-chain }
  }
  map no-endpoint-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30081 : goto reject-chain }
  }
  map firewall-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
  }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.10 . tcp . 80 : goto service-AAAA-shop/web/tcp/http }
  }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30080 : goto external-AAAA-shop/web/tcp/http }
  }
  chain filter-prerouting {
    type filter hook prerouting priority -110; policy accept;
    ct state new jump firewall-check
  }
  chain filter-input {
    type filter hook input priority -110; policy accept;
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority -110; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority -110; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump firewall-check
  }
  chain filter-output-post-dnat {
    type filter hook output priority -90; policy accept;
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    jump services
  }
  chain nat-output {
    type nat hook output priority -100; policy accept;
    jump services
  }
  chain nat-postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    jump masquerading
  }
  chain nodeport-endpoints-check {
    ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
  }
  chain service-endpoints-check {
    ip daddr . meta l4proto . th dport vmap @no-endpoint-services
  }
  chain firewall-check {
    ip daddr . meta l4proto . th dport vmap @firewall-ips
  }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain cluster-ips-check {
    ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
    ip daddr { 10.96.0.0/12 } drop comment "Drop traffic to unallocated ClusterIPs"
  }
  chain mark-for-masquerade {
    meta mark set meta mark | 0x00004000
  }
  chain masquerading {
    meta mark & 0x00004000 == 0x00000000 return
    meta mark set meta mark ^ 0x00004000
    masquerade fully-random
  }
  chain reject-chain {
    reject
  }
  chain external-AAAA-shop/web/tcp/http {
    jump mark-for-masquerade
    goto service-AAAA-shop/web/tcp/http
  }
  chain service-AAAA-shop/web/tcp/http {
    ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
    numgen random mod 2 vmap { 0 : goto endpoint-BBBB-shop/web/tcp/http, 1 : goto endpoint-CCCC-shop/web/tcp/http }
  }
  chain endpoint-BBBB-shop/web/tcp/http {
    ip saddr 10.244.3.2 jump mark-for-masquerade
    meta l4proto tcp dnat to 10.244.3.2:8080
  }
  chain endpoint-CCCC-shop/web/tcp/http {
    ip saddr 10.244.3.3 jump mark-for-masquerade
    meta l4proto tcp dnat to 10.244.3.3:8080
  }
}
"#;

/// As kube-proxy's `pkg/proxy/iptables/proxier.go` and the kubelet's
/// `pkg/kubelet/kubelet_network_linux.go` make it, for a service with two endpoints and a port of
/// the node, one without endpoints, and one whose traffic stays on the node.
const PROXY_IPTABLES: &str = r#"*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/none has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/near health check node port" -m tcp --dport 31234 -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m comment --comment "shop/none has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:KUBE-EXT-AAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-BBBB - [0:0]
:KUBE-SEP-CCCC - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-AAAA -m comment --comment "masquerade traffic for shop/web external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-AAAA -j KUBE-SVC-AAAA
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web" -m tcp --dport 30080 -j KUBE-EXT-AAAA
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-BBBB -s 10.244.3.2/32 -m comment --comment "shop/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-BBBB -p tcp -m comment --comment "shop/web" -m tcp -j DNAT --to-destination 10.244.3.2:8080
-A KUBE-SEP-CCCC -s 10.244.3.3/32 -m comment --comment "shop/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-CCCC -p tcp -m comment --comment "shop/web" -m tcp -j DNAT --to-destination 10.244.3.3:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-AAAA
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAA ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-AAAA -m comment --comment "shop/web -> 10.244.3.2:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-BBBB
-A KUBE-SVC-AAAA -m comment --comment "shop/web -> 10.244.3.3:8080" -j KUBE-SEP-CCCC
COMMIT
"#;

/// As Calico's `felix/rules/static.go`, `dispatch.go` and `endpoints.go` make it, with one workload
/// and the default marks: 0x10000 accepted, 0x20000 passed on, 0x40000 from a workload.
const CALICO_IPTABLES: &str = r#"*raw
:cali-OUTPUT - [0:0]
:cali-PREROUTING - [0:0]
:cali-from-host-endpoint - [0:0]
:cali-rpf-skip - [0:0]
:cali-to-host-endpoint - [0:0]
-I PREROUTING -m comment --comment "cali:r1" -j cali-PREROUTING
-I OUTPUT -m comment --comment "cali:r2" -j cali-OUTPUT
-A cali-OUTPUT -m comment --comment "cali:r3" -j MARK --set-xmark 0x0/0xf0000
-A cali-OUTPUT -m comment --comment "cali:r4" -j cali-to-host-endpoint
-A cali-OUTPUT -m comment --comment "cali:r5" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-PREROUTING -m comment --comment "cali:r6" -j MARK --set-xmark 0x0/0xf0000
-A cali-PREROUTING -i cali+ -m comment --comment "cali:r7" -j MARK --set-xmark 0x40000/0x40000
-A cali-PREROUTING -m comment --comment "cali:r8" -m mark --mark 0x40000/0x40000 -j cali-rpf-skip
-A cali-PREROUTING -m comment --comment "cali:r9" -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP
-A cali-PREROUTING -m comment --comment "cali:r10" -m mark --mark 0x0/0x40000 -j cali-from-host-endpoint
-A cali-PREROUTING -m comment --comment "cali:r11" -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
*mangle
:cali-POSTROUTING - [0:0]
:cali-PREROUTING - [0:0]
:cali-from-host-endpoint - [0:0]
:cali-to-host-endpoint - [0:0]
-I PREROUTING -m comment --comment "cali:m1" -j cali-PREROUTING
-I POSTROUTING -m comment --comment "cali:m2" -j cali-POSTROUTING
-A cali-POSTROUTING -m comment --comment "cali:m3" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-POSTROUTING -m comment --comment "cali:m4" -j MARK --set-xmark 0x0/0xf0000
-A cali-POSTROUTING -m comment --comment "cali:m5" -m conntrack --ctstate DNAT -j cali-to-host-endpoint
-A cali-POSTROUTING -m comment --comment "cali:m6" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-PREROUTING -m comment --comment "cali:m7" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-PREROUTING -m comment --comment "cali:m8" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-PREROUTING -m comment --comment "cali:m9" -j cali-from-host-endpoint
-A cali-PREROUTING -m comment --comment "cali:m10" -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
*nat
:cali-OUTPUT - [0:0]
:cali-POSTROUTING - [0:0]
:cali-PREROUTING - [0:0]
:cali-fip-dnat - [0:0]
:cali-fip-snat - [0:0]
:cali-nat-outgoing - [0:0]
-I PREROUTING -m comment --comment "cali:n1" -j cali-PREROUTING
-I OUTPUT -m comment --comment "cali:n2" -j cali-OUTPUT
-I POSTROUTING -m comment --comment "cali:n3" -j cali-POSTROUTING
-A cali-OUTPUT -m comment --comment "cali:n4" -j cali-fip-dnat
-A cali-POSTROUTING -m comment --comment "cali:n5" -j cali-fip-snat
-A cali-POSTROUTING -m comment --comment "cali:n6" -j cali-nat-outgoing
-A cali-POSTROUTING -o tunl0 -m comment --comment "cali:n7" -m addrtype ! --src-type LOCAL --limit-iface-out -m addrtype --src-type LOCAL -j MASQUERADE --random-fully
-A cali-PREROUTING -m comment --comment "cali:n8" -j cali-fip-dnat
-A cali-nat-outgoing -s 10.245.0.0/16 ! -d 10.245.0.0/16 -m comment --comment "cali:n9" -j MASQUERADE --random-fully
COMMIT
*filter
:cali-FORWARD - [0:0]
:cali-INPUT - [0:0]
:cali-OUTPUT - [0:0]
:cali-cidr-block - [0:0]
:cali-from-hep-forward - [0:0]
:cali-from-host-endpoint - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali1 - [0:0]
:cali-pri-kns.shop - [0:0]
:cali-pro-kns.shop - [0:0]
:cali-to-hep-forward - [0:0]
:cali-to-host-endpoint - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-tw-cali1 - [0:0]
:cali-wl-to-host - [0:0]
-I INPUT -m comment --comment "cali:f1" -j cali-INPUT
-I FORWARD -m comment --comment "cali:f2" -j cali-FORWARD
-I OUTPUT -m comment --comment "cali:f3" -j cali-OUTPUT
-A FORWARD -m comment --comment "cali:f4" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -m comment --comment "cali:f5" -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -m comment --comment "cali:f6" -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -m comment --comment "cali:f7" -m mark --mark 0x0/0x10000 -j cali-from-hep-forward
-A cali-FORWARD -i cali+ -m comment --comment "cali:f8" -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -m comment --comment "cali:f9" -j cali-to-wl-dispatch
-A cali-FORWARD -m comment --comment "cali:f10" -j cali-to-hep-forward
-A cali-FORWARD -m comment --comment "cali:f11" -j cali-cidr-block
-A cali-INPUT -s 198.51.100.3/32 -p 4 -m comment --comment "cali:f12" -m comment --comment "Allow IPIP packets from Calico hosts" -m addrtype --dst-type LOCAL -j ACCEPT
-A cali-INPUT -p 4 -m comment --comment "cali:f13" -m comment --comment "Drop IPIP packets from non-Calico hosts" -j DROP
-A cali-INPUT -i cali+ -m comment --comment "cali:f14" -g cali-wl-to-host
-A cali-INPUT -m comment --comment "cali:f15" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-INPUT -m comment --comment "cali:f16" -j MARK --set-xmark 0x0/0xf0000
-A cali-INPUT -m comment --comment "cali:f17" -j cali-from-host-endpoint
-A cali-INPUT -m comment --comment "cali:f18" -m comment --comment "Host endpoint policy accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-OUTPUT -m comment --comment "cali:f19" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-OUTPUT -o cali+ -m comment --comment "cali:f20" -j RETURN
-A cali-OUTPUT -m comment --comment "cali:f21" -j MARK --set-xmark 0x0/0xf0000
-A cali-OUTPUT -m comment --comment "cali:f22" -m conntrack ! --ctstate DNAT -j cali-to-host-endpoint
-A cali-OUTPUT -m comment --comment "cali:f23" -m comment --comment "Host endpoint policy accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-cidr-block -d 10.96.0.0/12 -m comment --comment "cali:f24" -j REJECT --reject-with icmp-port-unreachable
-A cali-from-wl-dispatch -i cali1 -m comment --comment "cali:f25" -g cali-fw-cali1
-A cali-from-wl-dispatch -m comment --comment "cali:f26" -m comment --comment "Unknown interface" -j DROP
-A cali-fw-cali1 -m comment --comment "cali:f27" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fw-cali1 -m comment --comment "cali:f28" -m conntrack --ctstate INVALID -j DROP
-A cali-fw-cali1 -m comment --comment "cali:f29" -j MARK --set-xmark 0x0/0x30000
-A cali-fw-cali1 -p udp -m comment --comment "cali:f30" -m comment --comment "Drop VXLAN encapped packets originating in workloads" -m udp --dport 4789 -j DROP
-A cali-fw-cali1 -p 4 -m comment --comment "cali:f31" -m comment --comment "Drop IPinIP encapped packets originating in workloads" -j DROP
-A cali-fw-cali1 -m comment --comment "cali:f32" -j cali-pro-kns.shop
-A cali-fw-cali1 -m comment --comment "cali:f33" -m comment --comment "Return if profile accepted" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-fw-cali1 -m comment --comment "cali:f34" -m comment --comment "Drop if no profiles matched" -j DROP
-A cali-pri-kns.shop -m comment --comment "cali:f35" -j MARK --set-xmark 0x10000/0x10000
-A cali-pri-kns.shop -m comment --comment "cali:f36" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-pro-kns.shop -m comment --comment "cali:f37" -j MARK --set-xmark 0x10000/0x10000
-A cali-pro-kns.shop -m comment --comment "cali:f38" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-to-wl-dispatch -o cali1 -m comment --comment "cali:f39" -g cali-tw-cali1
-A cali-to-wl-dispatch -m comment --comment "cali:f40" -m comment --comment "Unknown interface" -j DROP
-A cali-tw-cali1 -m comment --comment "cali:f41" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-cali1 -m comment --comment "cali:f42" -m conntrack --ctstate INVALID -j DROP
-A cali-tw-cali1 -m comment --comment "cali:f43" -j MARK --set-xmark 0x0/0x30000
-A cali-tw-cali1 -m comment --comment "cali:f44" -j cali-pri-kns.shop
-A cali-tw-cali1 -m comment --comment "cali:f45" -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-cali1 -m comment --comment "cali:f46" -m comment --comment "Drop if no profiles matched" -j DROP
-A cali-wl-to-host -m comment --comment "cali:f47" -j cali-from-wl-dispatch
-A cali-wl-to-host -m comment --comment "cali:f48" -m comment --comment "Configured DefaultEndpointToHostAction" -j ACCEPT
COMMIT
"#;

/// The same in nftables, as `felix/nftables/table.go` makes it: one table for each family, base
/// chains named after those of iptables, and verdict maps in place of dispatch chains.
const CALICO_NFTABLES: &str = r#"
table ip calico {
  set cali40all-ipam-pools {
    type ipv4_addr
    flags interval
    elements = { 10.245.0.0/16 }
  }
  set cali40masq-ipam-pools {
    type ipv4_addr
    flags interval
    elements = { 10.245.0.0/16 }
  }
  set cali40all-vxlan-net {
    type ipv4_addr
    flags interval
    elements = { 198.51.100.3 }
  }
  map filter-cali-from-wl-dispatch {
    type ifname : verdict
    elements = { "cali1" : goto filter-cali-fw-cali1 }
  }
  map filter-cali-to-wl-dispatch {
    type ifname : verdict
    elements = { "cali1" : goto filter-cali-tw-cali1 }
  }
  chain raw-PREROUTING {
    type filter hook prerouting priority raw; policy accept;
    counter jump raw-cali-PREROUTING
  }
  chain raw-cali-PREROUTING {
    counter meta mark set meta mark & 0xfff0ffff
    udp dport 4789 counter notrack
    iifname "cali*" counter meta mark set meta mark | 0x00040000
    meta mark & 0x00040000 == 0x00040000 fib saddr . mark . iif oif missing counter drop
    meta mark & 0x00010000 == 0x00010000 counter accept
  }
  chain mangle-PREROUTING {
    type filter hook prerouting priority mangle; policy accept;
    ct state established,related counter accept
    meta mark & 0x00010000 == 0x00010000 counter accept
  }
  chain mangle-POSTROUTING {
    type filter hook postrouting priority mangle; policy accept;
    meta mark & 0x00010000 == 0x00010000 counter return
    counter meta mark set meta mark & 0xfff0ffff
  }
  chain nat-PREROUTING {
    type nat hook prerouting priority dstnat; policy accept;
    counter jump nat-cali-fip-dnat
  }
  chain nat-OUTPUT {
    type nat hook output priority -100; policy accept;
    counter jump nat-cali-fip-dnat
  }
  chain nat-POSTROUTING {
    type nat hook postrouting priority srcnat; policy accept;
    counter jump nat-cali-nat-outgoing
  }
  chain nat-cali-fip-dnat {
  }
  chain nat-cali-nat-outgoing {
    ip saddr @cali40masq-ipam-pools ip daddr != @cali40all-ipam-pools counter masquerade fully-random
  }
  chain filter-INPUT {
    type filter hook input priority filter; policy accept;
    ip saddr @cali40all-vxlan-net udp dport 4789 fib daddr type local counter accept
    udp dport 4789 fib daddr type local counter drop
    iifname "cali*" counter goto filter-cali-wl-to-host
    meta mark & 0x00010000 == 0x00010000 counter accept
    counter meta mark set meta mark & 0xfff0ffff
  }
  chain filter-OUTPUT {
    type filter hook output priority filter; policy accept;
    meta mark & 0x00010000 == 0x00010000 counter accept
    oifname "cali*" counter return
    counter meta mark set meta mark & 0xfff0ffff
    ct status != dnat counter jump filter-cali-to-host-endpoint
  }
  chain filter-FORWARD {
    type filter hook forward priority filter; policy accept;
    counter jump filter-cali-FORWARD
    meta mark & 0x00010000 == 0x00010000 counter accept
    counter meta mark set meta mark | 0x00010000
  }
  chain filter-cali-FORWARD {
    counter meta mark set meta mark & 0xfff1ffff
    meta mark & 0x00010000 == 0x00000000 counter jump filter-cali-from-hep-forward
    iifname "cali*" counter jump filter-cali-from-wl-dispatch
    oifname "cali*" counter jump filter-cali-to-wl-dispatch
    counter jump filter-cali-cidr-block
  }
  chain filter-cali-from-hep-forward {
  }
  chain filter-cali-to-host-endpoint {
  }
  chain filter-cali-cidr-block {
    ip daddr 10.96.0.0/12 counter reject
  }
  chain filter-cali-from-wl-dispatch {
    iifname vmap @filter-cali-from-wl-dispatch
    counter drop
  }
  chain filter-cali-to-wl-dispatch {
    oifname vmap @filter-cali-to-wl-dispatch
    counter drop
  }
  chain filter-cali-wl-to-host {
    counter jump filter-cali-from-wl-dispatch
    counter accept
  }
  chain filter-cali-fw-cali1 {
    ct state established,related counter accept
    ct state invalid counter drop
    counter meta mark set meta mark & 0xfffcffff
    udp dport 4789 counter drop
    meta l4proto 4 counter drop
    counter jump filter-cali-pro-kns.shop
    meta mark & 0x00010000 == 0x00010000 counter return
    counter drop
  }
  chain filter-cali-tw-cali1 {
    ct state established,related counter accept
    ct state invalid counter drop
    counter meta mark set meta mark & 0xfffcffff
    counter jump filter-cali-pro-kns.shop
    meta mark & 0x00010000 == 0x00010000 counter return
    counter drop
  }
  chain filter-cali-pro-kns.shop {
    counter meta mark set meta mark | 0x00010000
    meta mark & 0x00010000 == 0x00010000 counter return
  }
}
"#;

/// As Cilium's `pkg/datapath/iptables/iptables.go` makes it with tunnels, masquerading and its
/// proxy. Programs of BPF, which do the rest, are not part of it.
const CILIUM_IPTABLES: &str = r#"*raw
:CILIUM_OUTPUT_raw - [0:0]
:CILIUM_PRE_raw - [0:0]
-I PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_raw" -j CILIUM_PRE_raw
-I OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT_raw" -j CILIUM_OUTPUT_raw
-A CILIUM_OUTPUT_raw -o lxc+ -m mark --mark 0xa00/0xfffffeff -m comment --comment "cilium: NOTRACK for proxy return traffic" -j CT --notrack
-A CILIUM_OUTPUT_raw -o cilium_host -m mark --mark 0xa00/0xfffffeff -m comment --comment "cilium: NOTRACK for proxy return traffic" -j CT --notrack
-A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -m comment --comment "cilium: NOTRACK for proxy traffic" -j CT --notrack
COMMIT
*mangle
:CILIUM_POST_mangle - [0:0]
:CILIUM_PRE_mangle - [0:0]
-I PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_mangle" -j CILIUM_PRE_mangle
-I POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_mangle" -j CILIUM_POST_mangle
-A CILIUM_PRE_mangle -m socket --nowildcard --transparent -m comment --comment "cilium: any->pod redirect proxied traffic to host proxy" -j MARK --set-xmark 0x200/0xffffffff
-A CILIUM_PRE_mangle -p tcp -m mark --mark 0x3a890200 -m comment --comment "cilium: TPROXY to host cilium-dns-egress proxy" -j TPROXY --on-port 35130 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff
-A CILIUM_PRE_mangle -p udp -m mark --mark 0x3a890200 -m comment --comment "cilium: TPROXY to host cilium-dns-egress proxy" -j TPROXY --on-port 35130 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff
COMMIT
*nat
:CILIUM_OUTPUT_nat - [0:0]
:CILIUM_POST_nat - [0:0]
:CILIUM_PRE_nat - [0:0]
-I PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_nat" -j CILIUM_PRE_nat
-I OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT_nat" -j CILIUM_OUTPUT_nat
-I POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s 10.246.0.0/24 ! -d 10.246.0.0/24 ! -o cilium_+ -m comment --comment "cilium masquerade non-cluster" -j MASQUERADE
-A CILIUM_POST_nat ! -o cilium_host -m comment --comment "exclude non-cilium_host traffic from masquerade" -j RETURN
-A CILIUM_POST_nat -m mark --mark 0xa00/0xe00 -m comment --comment "exclude proxy return traffic from masquerade" -j ACCEPT
-A CILIUM_POST_nat ! -s 10.246.0.1/32 ! -d 10.246.0.0/24 -o cilium_host -m comment --comment "cilium host->cluster masquerade" -j SNAT --to-source 10.246.0.1
-A CILIUM_POST_nat -s 127.0.0.1/32 -o cilium_host -m comment --comment "cilium host->cluster from 127.0.0.1 masquerade" -j SNAT --to-source 10.246.0.1
COMMIT
*filter
:CILIUM_FORWARD - [0:0]
:CILIUM_INPUT - [0:0]
:CILIUM_OUTPUT - [0:0]
-I INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
-I FORWARD -m comment --comment "cilium-feeder: CILIUM_FORWARD" -j CILIUM_FORWARD
-I OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT" -j CILIUM_OUTPUT
-A CILIUM_FORWARD -o cilium_host -m comment --comment "cilium: any->cluster on cilium_host forward accept" -j ACCEPT
-A CILIUM_FORWARD -i cilium_host -m comment --comment "cilium: cluster->any on cilium_host forward accept (nodeport)" -j ACCEPT
-A CILIUM_FORWARD -i lxc+ -m comment --comment "cilium: cluster->any on lxc+ forward accept" -j ACCEPT
-A CILIUM_INPUT -m mark --mark 0x200/0xf00 -m comment --comment "cilium: ACCEPT for proxy traffic" -j ACCEPT
-A CILIUM_OUTPUT -m mark --mark 0xa00/0xe00 -m comment --comment "cilium: ACCEPT for proxy return traffic" -j ACCEPT
-A CILIUM_OUTPUT -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0xd00/0xf00 -m mark ! --mark 0xa00/0xe00 -m comment --comment "cilium: host->any mark as from host" -j MARK --set-xmark 0xc00/0xf00
COMMIT
"#;

/// Cilium's links, and its routes for packets to and from its proxy (`pkg/datapath/linux/routing`,
/// `bpf/init.sh`).
const CILIUM_LINKS: &str = "set -e
ip link add cilium_host type veth peer name cilium_net
ip link set cilium_host up
ip link set cilium_net up
ip addr add 10.246.0.1/32 dev cilium_host
ip route add 10.246.0.0/24 dev cilium_host src 10.246.0.1
ip rule add priority 9 fwmark 0x200/0xf00 lookup 2004
ip route replace local 0.0.0.0/0 dev lo table 2004
ip rule add priority 10 fwmark 0xa00/0xf00 lookup 2005
ip route replace default dev cilium_host table 2005
ip rule add priority 100 lookup local
ip rule del priority 0
";

pub(super) fn proxy_nftables(lab: &Lab) {
    nft(lab, PROXY_NFTABLES);
}

pub(super) fn proxy_iptables(lab: &Lab) {
    restore(lab, "iptables-nft-restore", PROXY_IPTABLES);
}

pub(super) fn proxy_legacy_iptables(lab: &Lab) {
    restore(lab, "iptables-legacy-restore", PROXY_IPTABLES);
}

pub(super) fn calico_iptables(lab: &Lab) {
    restore(lab, "iptables-nft-restore", CALICO_IPTABLES);
}

pub(super) fn calico_nftables(lab: &Lab) {
    nft(lab, CALICO_NFTABLES);
}

pub(super) fn cilium(lab: &Lab) {
    restore(lab, "iptables-nft-restore", CILIUM_IPTABLES);
    lab.sh(CILIUM_LINKS);
}
