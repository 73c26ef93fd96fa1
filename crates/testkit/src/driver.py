"""A Docker network driver and IPAM driver for tests: driver.py SOCKET FOLDER

It keeps its state in FOLDER/held.json, so that a test can kill it and start it again, and appends
every call to FOLDER/calls.jsonl before it acts. FOLDER/rules.json says how it misbehaves: a
method's name and one of
  {"reply": {...}}      this answer, without any action       {"raw": "text"}      these bytes in place of HTTP
  {"body": "text"}      this body, without any action         {"status": 500, "body": "text"}
  {"silent": true}      no answer at all                      {"half": true}       half an answer
  {"flood": N}          a body of N bytes                     {"die": "before" | "after"}   killed before it acts, or after
  {"add": {...}}        keys added to the answer it would give
  {"kill": true}        the caller is killed, and it acts
  {"place": true}       Join puts the interface into the container itself, and names none
A network is a bridge named `db` with seven digits of its ID; an endpoint is a pair named `dv`/`dc`
with digits of its ID.
"""
import ipaddress, json, os, signal, socket, socketserver, struct, subprocess, sys

sock_path, folder = sys.argv[1], sys.argv[2]


class Refusal(Exception):
    pass


def path(name):
    return os.path.join(folder, name)


def load(name, otherwise):
    try:
        with open(path(name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return otherwise


def save(held):
    with open(path("held.json.new"), "w") as file:
        json.dump(held, file)
    os.rename(path("held.json.new"), path("held.json"))


def ip(*words, may_fail=False):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise Refusal("ip %s: %s" % (" ".join(words), done.stderr.strip()))


def network_of(held, asked):
    found = held["networks"].get(asked["NetworkID"])
    if found is None:
        raise Refusal("no such network")
    return found


def endpoint_of(held, asked):
    found = held["endpoints"].get(asked["EndpointID"])
    if found is None:
        raise Refusal("no such endpoint")
    return found


def create_network(held, asked):
    if asked["NetworkID"] in held["networks"]:
        raise Refusal("the network exists already")
    bridge = "db" + asked["NetworkID"][:7]
    data = (asked.get("IPv4Data") or []) + (asked.get("IPv6Data") or [])
    ip("link", "add", bridge, "type", "bridge")
    ip("link", "set", bridge, "addrgenmode", "none")
    ip("link", "set", bridge, "up")
    gateways = [one["Gateway"] for one in data if one.get("Gateway")]
    for gateway in gateways:
        ip("addr", "add", gateway, "dev", bridge, *(["nodad"] if ":" in gateway else []))
    held["networks"][asked["NetworkID"]] = {
        "bridge": bridge,
        "gateways": gateways,
        "own": [one["Pool"] for one in data if one["AddressSpace"] == "null"],
        "options": asked.get("Options"),
    }
    return {}


def delete_network(held, asked):
    found = network_of(held, asked)
    if any(one["network"] == asked["NetworkID"] for one in held["endpoints"].values()):
        raise Refusal("the network has endpoints")
    ip("link", "del", found["bridge"], may_fail=True)
    del held["networks"][asked["NetworkID"]]
    return {}


def create_endpoint(held, asked):
    network = network_of(held, asked)
    if asked["EndpointID"] in held["endpoints"]:
        raise Refusal("the endpoint exists already")
    digits = asked["EndpointID"][:9]
    inner, outer = "dc" + digits, "dv" + digits
    wanted = asked.get("Interface") or {}
    answer = {}
    if not wanted.get("MacAddress"):
        answer["MacAddress"] = "02:dd:" + ":".join(digits[at:at + 2] for at in (0, 2, 4, 6))
    held["counter"] += 1
    if "0.0.0.0/0" in network["own"] and not wanted.get("Address"):
        answer["Address"] = "10.77.0.%d/24" % (held["counter"] + 1)
    if "::/0" in network["own"] and not wanted.get("AddressIPv6"):
        answer["AddressIPv6"] = "fd77::%x/64" % (held["counter"] + 1)
    held["endpoints"][asked["EndpointID"]] = {
        "network": asked["NetworkID"], "inner": inner, "outer": outer, "sandbox": "", "ports": None,
        "options": asked.get("Options"),
    }
    ip("link", "add", outer, "type", "veth", "peer", "name", inner)
    ip("link", "set", inner, "addrgenmode", "none", "address", wanted.get("MacAddress") or answer["MacAddress"])
    ip("link", "set", outer, "addrgenmode", "none", "master", network["bridge"], "up")
    return {"Interface": answer}


def delete_endpoint(held, asked):
    found = endpoint_of(held, asked)
    ip("link", "del", found["outer"], may_fail=True)
    del held["endpoints"][asked["EndpointID"]]
    return {}


def join(held, asked):
    network, endpoint = network_of(held, asked), endpoint_of(held, asked)
    if endpoint["sandbox"]:
        raise Refusal("the endpoint has joined already")
    endpoint["sandbox"] = asked["SandboxKey"]
    answer = {"InterfaceName": {"SrcName": endpoint["inner"], "DstPrefix": "eth"}}
    for gateway in network["gateways"]:
        key = "GatewayIPv6" if ":" in gateway else "Gateway"
        answer[key] = gateway.split("/")[0]
    return answer


def leave(held, asked):
    endpoint = endpoint_of(held, asked)
    if endpoint["ports"] is not None:
        raise Refusal("ports are published")
    endpoint["sandbox"] = ""
    return {}


def publish(held, asked):
    endpoint_of(held, asked)["ports"] = (asked.get("Options") or {}).get("com.docker.network.portmap") or []
    return {}


def revoke(held, asked):
    endpoint_of(held, asked)["ports"] = None
    return {}


def oper_info(held, asked):
    return {"Value": {"outer": endpoint_of(held, asked)["outer"], "number": 7}}


def request_pool(held, asked):
    wanted = asked.get("Pool")
    if not wanted:
        number = len(held["pools"]) + 1
        wanted = "fd99:%x::/64" % number if asked.get("V6") else "10.99.%d.0/24" % number
    pool = asked["AddressSpace"] + "/" + wanted
    found = held["pools"].setdefault(pool, {"subnet": wanted, "range": asked.get("SubPool") or wanted, "taken": {}})
    if found["taken"]:
        raise Refusal("the pool is in use")
    return {"PoolID": pool, "Pool": wanted, "Data": {"com.example.colour": "blue"}}


def release_pool(held, asked):
    if asked["PoolID"] not in held["pools"]:
        raise Refusal("no such pool")
    del held["pools"][asked["PoolID"]]
    return {}


def request_address(held, asked):
    pool = held["pools"].get(asked["PoolID"])
    if pool is None:
        raise Refusal("no such pool")
    options = asked.get("Options") or {}
    subnet = ipaddress.ip_network(pool["subnet"])
    address = asked.get("Address")
    if not address:
        gateway = options.get("RequestAddressType") == "com.docker.network.gateway"
        hosts = (subnet if gateway else ipaddress.ip_network(pool["range"])).hosts()
        address = next((str(one) for one in hosts if str(one) not in pool["taken"]), None)
        if address is None:
            raise Refusal("no address is free")
    if address in pool["taken"]:
        raise Refusal("the address is taken")
    pool["taken"][address] = options
    return {"Address": "%s/%d" % (address, subnet.prefixlen)}


def release_address(held, asked):
    pool = held["pools"].get(asked["PoolID"])
    if pool is None or asked["Address"] not in pool["taken"]:
        raise Refusal("the address is not taken")
    del pool["taken"][asked["Address"]]
    return {}


ACTS = {
    "Plugin.Activate": lambda held, asked: {"Implements": ["NetworkDriver", "IpamDriver"]},
    "NetworkDriver.GetCapabilities": lambda held, asked: {"Scope": "local"},
    "NetworkDriver.CreateNetwork": create_network,
    "NetworkDriver.DeleteNetwork": delete_network,
    "NetworkDriver.CreateEndpoint": create_endpoint,
    "NetworkDriver.DeleteEndpoint": delete_endpoint,
    "NetworkDriver.EndpointOperInfo": oper_info,
    "NetworkDriver.Join": join,
    "NetworkDriver.Leave": leave,
    "NetworkDriver.ProgramExternalConnectivity": publish,
    "NetworkDriver.RevokeExternalConnectivity": revoke,
    "IpamDriver.GetCapabilities": lambda held, asked: {},
    "IpamDriver.GetDefaultAddressSpaces": lambda held, asked: {
        "LocalDefaultAddressSpace": "here", "GlobalDefaultAddressSpace": "everywhere"},
    "IpamDriver.RequestPool": request_pool,
    "IpamDriver.ReleasePool": release_pool,
    "IpamDriver.RequestAddress": request_address,
    "IpamDriver.ReleaseAddress": release_address,
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def answer(method, asked, rule):
    """Acts, and returns status and content."""
    if method not in ACTS:
        return 404, {}
    held = load("held.json", {"networks": {}, "endpoints": {}, "pools": {}, "counter": 0})
    try:
        content = ACTS[method](held, asked)
        save(held)
    except Refusal as refusal:
        key = "Error" if method.startswith("IpamDriver") else "Err"
        return 200, {key: str(refusal)}
    if rule.get("die") == "after":
        die()
    if rule.get("place"):
        ip("link", "set", content.pop("InterfaceName")["SrcName"], "netns", asked["SandboxKey"])
    content.update(rule.get("add") or {})
    return 200, content


def http(status, body):
    head = "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return head.encode() + body


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode().split()
        if not line:
            return
        method, length = line[1].lstrip("/"), 0
        while True:
            field = self.rfile.readline().decode().strip()
            if not field:
                break
            key, _, value = field.partition(":")
            if key.lower() == "content-length":
                length = int(value)
        asked = json.loads(self.rfile.read(length) or b"{}")
        with open(path("calls.jsonl"), "a") as log:
            log.write(json.dumps({"method": method, "asked": asked}) + "\n")
        rule = load("rules.json", {}).get(method, {})
        if rule.get("die") == "before":
            die()
        if rule.get("kill"):
            credentials = self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            os.kill(struct.unpack("3i", credentials)[0], signal.SIGKILL)
        if "silent" in rule:
            self.rfile.read()
            return
        if "raw" in rule:
            return self.write(rule["raw"].encode())
        if "flood" in rule:
            return self.write(http(200, b"x" * rule["flood"]))
        if "reply" in rule:
            return self.write(http(rule.get("status", 200), json.dumps(rule["reply"]).encode()))
        if "body" in rule:
            return self.write(http(rule.get("status", 200), rule["body"].encode()))
        status, content = answer(method, asked, rule)
        whole = http(status, json.dumps(content).encode())
        self.write(whole[:len(whole) - 2] if "half" in rule else whole)

    def write(self, data):
        try:
            self.wfile.write(data)
        except BrokenPipeError:
            pass


class Server(socketserver.UnixStreamServer):
    """One call after the other, in order of arrival, even if the caller is gone by then."""
    request_queue_size = 64


os.makedirs(os.path.dirname(sock_path), exist_ok=True)
if os.path.exists(sock_path):
    os.unlink(sock_path)
server = Server(sock_path, Handler)
print("listening", flush=True)
server.serve_forever()
